// Package web is the dashboard. It renders pages in this process, reads and acts through the operators'
// API of this process, and keeps open pages up to date over a stream.
//
// A page is a loader and a template. The template marks the parts that change as pieces. When something
// on a page may have changed, the stream renders the page again, once for all its viewers, and sends
// the pieces that differ.
package web

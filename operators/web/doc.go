// Package web is the dashboard: pages rendered here, which read and act through
// the operators' API of this process, and are kept up to date over a stream.
//
// A page is a loader and a template. The template marks the parts that change
// as pieces; the stream renders the page again when something it shows may have
// changed, once for all who look at it, and sends the pieces that differ.
package web

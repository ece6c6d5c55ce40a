// Package web is the dashboard. It renders pages in this process, reads and acts through the operators' API of this process, and keeps open
// pages up to date over a stream.
//
// A page consists of a loader and a template. To read a page is to run its loader and to render its template. The template marks the parts
// of the page that can change. These parts are called pieces. When something on an open page may have changed, the hub reads the page
// again, once for all its viewers with the same role. Then the streams send the pieces that differ. A page that nobody views is not read.
//
// Only a live page (addLivePage, addLivePageWithRedis) is updated while it is open. Of its visitor, a live page may use only the role.
// The API checks the rights of each request, also of a form. CONTRIBUTING.md ("Add a page") lists the tests that need the path of a new page.
//
// Pages call an offered slot "reserved", a reaped grant "taken back", and a report that got no grant "refused".
package web

// Package app wires the dispatcher together: New opens what it depends on and
// binds its listeners, Start lets it work, Stop ends it within a bound. Serve
// and Dev differ only in what they plug in: real servers, or embedded ones.
package app

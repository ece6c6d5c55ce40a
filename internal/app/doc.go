// Package app connects the parts of the dispatcher. Serve and NewDev open the servers that it depends
// on and bind its listeners. App.Start starts it, and App.Stop ends it within a time limit. Serve uses
// real servers, NewDev embedded ones.
package app

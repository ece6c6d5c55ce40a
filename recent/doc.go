// Package recent remembers in Redis which devices were seen last: a list
// without duplicates, newest first, over all replicas. It is a view to look at:
// when Redis loses it, it fills again with the next reports.
package recent

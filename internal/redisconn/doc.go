// Package redisconn opens the Redis that a URL names, whatever it turns out to
// be: one server, a Cluster, one address of a Cluster, or a master that Sentinel
// watches.
//
// Guarantees: a Cluster is recognised behind any of its addresses, at the start and
// whenever its topology is read again; the topology is read again at once when a
// node does not answer or does not serve; replicas are never read; a command, or a
// pipeline, to which no answer came is sent again only by its caller.
// A Redis that takes calls and does not answer costs its callers one wait, not one each.
//
// Limits: database 0 only, of a Cluster. With CLUSTER forbidden or renamed a
// Cluster is not recognised behind one address.
package redisconn

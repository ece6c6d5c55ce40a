// Package redisconn opens the Redis that a URL names. It finds out what the URL names: one server, a Cluster, one address of a Cluster, or
// a master that Sentinel watches.
//
// Guarantees: a Cluster is recognised behind any of its addresses, at the start and whenever its topology is read again. The topology is
// read again at once when a node does not answer or does not serve. Replicas are never read. A command or a pipeline without an answer is
// resent only by its caller. A Redis that accepts calls and does not answer delays its callers by one timeout in total, not by one timeout
// each.
//
// Limits: a Cluster has only database 0. If CLUSTER is forbidden or renamed, a Cluster is not recognised behind one address.
package redisconn

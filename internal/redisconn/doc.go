// Package redisconn opens a connection to the Redis that a URL names. It finds out what the URL names: one server, a Cluster, one address of a
// Cluster, or a master that Sentinel watches. With TLS, ParseURL also reads a file of private certificate authorities.
//
// The package recognises a Cluster behind any of its addresses, at the start and whenever it reads the topology again. It reads the topology
// again at once when a node does not answer or does not serve. It never reads from replicas. The client of a Conn does not resend a command or a
// pipeline without an answer. Breakers resend it, as often as their caller permits. If a Redis accepts calls and does not answer, all callers of
// one Breakers together lose one timeout, not one timeout each.
//
// A Cluster has only database 0. If the command CLUSTER is forbidden or renamed, the package does not recognise a Cluster behind one address.
// With TLS, the certificate of a node must contain the address that the Cluster or Sentinel announces for the node.
package redisconn

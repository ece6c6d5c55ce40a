// Package memoryredis runs the in-process Redis of the embedded mode. It is miniredis with an ordered index for sorted sets.
//
// miniredis copies and sorts a whole sorted set at each range command. With 2,000 waiting devices, a script of package slots took tens of
// milliseconds. Here, the index answers the range commands of scripts. miniredis runs all other commands, and all writes. As in Redis, one
// command runs at a time.
//
// The data is lost when the server is closed. Only database 0 has an index.
package memoryredis

// Package memoryredis runs the in-process Redis of the embedded mode: miniredis, with an ordered index for its sorted sets.
//
// miniredis copies and sorts a whole sorted set at each range command, so that with 2,000 waiting devices a script of
// package slots took tens of milliseconds. The index answers the range commands of scripts. All other commands, and all
// writes, are run by miniredis. As in Redis, one command runs at a time.
//
// The data is lost when the server is closed. Only database 0 has an index.
package memoryredis

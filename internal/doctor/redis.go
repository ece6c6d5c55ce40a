package doctor

import (
	"context"
	"strings"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// checkRedis reads the state of Redis and checks it.
func (p Installation) checkRedis(ctx context.Context, conn *redisconn.Conn) []Finding {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	notes, err := conn.Examine(ctx)
	if err != nil {
		return []Finding{{"redis", Failed, err.Error(), "start it, or correct redis_url: host, port, user, password, TLS"}}
	}
	return runChecks(notes, []check[redisconn.Notes]{
		{"redis", func(n redisconn.Notes) (State, string) { return noteState(n, redisconn.Node, "it is "+n.Kind) }, "repair that node, or the Cluster"},
		{"redis version", func(n redisconn.Notes) (State, string) { return noteState(n, redisconn.Version, n.Version) }, "Redis 6.2 or newer is needed"},
		{
			"redis eviction", func(n redisconn.Notes) (State, string) { return noteState(n, redisconn.Eviction, "noeviction") },
			"set maxmemory-policy noeviction",
		},
		{
			"redis memory", func(n redisconn.Notes) (State, string) { return noteState(n, redisconn.Memory, "below its limit") },
			"raise maxmemory: a full Redis refuses writes, and nothing is granted",
		},
		{
			"redis persistence", func(n redisconn.Notes) (State, string) {
				return noteState(n, redisconn.Persistence, "keeps its data across a restart")
			},
			"set appendonly yes: then a restart needs no restore from the ledger. The capacity is not exceeded without it either",
		},
		{
			"redis commands", func(n redisconn.Notes) (State, string) {
				return noteState(n, redisconn.Commands, "all required commands are permitted")
			},
			"give the user the rights of deploy/redis/users.acl",
		},
	})
}

// noteState returns the state of the check of a subject, and a text about what was found. If notes contain trouble with this subject, the
// state is Failed. If they contain only a hint about it, the state is Warning. Otherwise the state is OK, and the text is okText.
func noteState(notes redisconn.Notes, subject redisconn.Subject, okText string) (State, string) {
	for _, group := range []struct {
		list  []redisconn.Note
		state State
	}{{notes.Trouble, Failed}, {notes.Hints, Warning}} {
		var texts []string
		for _, note := range group.list {
			if note.About == subject {
				texts = append(texts, note.Text)
			}
		}
		if len(texts) > 0 {
			return group.state, strings.Join(texts, "; ")
		}
	}
	return OK, okText
}

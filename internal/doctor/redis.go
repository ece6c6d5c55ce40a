package doctor

import (
	"context"
	"strings"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// redis reads the state of Redis and checks it.
func (p Patient) redis(ctx context.Context, conn *redisconn.Conn) []Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	notes, err := conn.Examine(ctx)
	if err != nil {
		return []Finding{{"redis", Failed, err.Error(), "start it, or correct redis_url: host, port, user, password, TLS"}}
	}
	return through(notes, []check[redisconn.Notes]{
		{"redis", func(n redisconn.Notes) (State, string) { return about(n, redisconn.Node, "it is "+n.Kind) }, "mend that node, or the Cluster"},
		{"redis version", func(n redisconn.Notes) (State, string) { return about(n, redisconn.Version, n.Version) }, "Redis 6.2 or newer is needed"},
		{
			"redis eviction", func(n redisconn.Notes) (State, string) { return about(n, redisconn.Eviction, "noeviction") },
			"set maxmemory-policy noeviction",
		},
		{
			"redis memory", func(n redisconn.Notes) (State, string) { return about(n, redisconn.Memory, "below its limit") },
			"raise maxmemory: a full Redis refuses, and nothing is granted",
		},
		{
			"redis persistence", func(n redisconn.Notes) (State, string) {
				return about(n, redisconn.Persistence, "it keeps its data over a restart")
			},
			"set appendonly yes: a restart with its data spares the restoring. Nothing is over-granted without it",
		},
		{
			"redis commands", func(n redisconn.Notes) (State, string) {
				return about(n, redisconn.Commands, "all that are needed are permitted")
			},
			"give the user the rights of deploy/redis/users.acl",
		},
	})
}

// about returns Failed if there is trouble with a subject, Warning if there is only a hint about it,
// and otherwise OK.
func about(n redisconn.Notes, what redisconn.Subject, ok string) (State, string) {
	for _, told := range []struct {
		list  []redisconn.Note
		state State
	}{{n.Trouble, Failed}, {n.Hints, Warning}} {
		var says []string
		for _, note := range told.list {
			if note.About == what {
				says = append(says, note.Says)
			}
		}
		if len(says) > 0 {
			return told.state, strings.Join(says, "; ")
		}
	}
	return OK, ok
}

package doctor

import (
	"context"
	"strings"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

func (p Installation) checkRedis(ctx context.Context, conn *redisconn.Conn) []Finding {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	notes, err := conn.Examine(ctx)
	if err != nil {
		return []Finding{{"redis", Failed, err.Error(), "start it, or correct redis_url: host, port, user, password, TLS"}}
	}
	return []Finding{
		newNoteFinding(notes, "redis", redisconn.Node, "it is "+notes.Kind, "repair that node, or the Cluster"),
		newNoteFinding(notes, "redis version", redisconn.Version, notes.Version, "Redis 6.2 or newer is needed"),
		newNoteFinding(notes, "redis eviction", redisconn.Eviction, "noeviction", "set maxmemory-policy noeviction"),
		newNoteFinding(notes, "redis memory", redisconn.Memory, "below its limit", "raise maxmemory: a full Redis refuses writes, and nothing is granted"),
		newNoteFinding(notes, "redis persistence", redisconn.Persistence, "keeps its data across a restart",
			"set appendonly yes: then a restart needs no restore from the ledger. The capacity is not exceeded without it either"),
		newNoteFinding(notes, "redis commands", redisconn.Commands, "all required commands are permitted", "give the user the rights of deploy/redis/users.acl"),
	}
}

// newNoteFinding returns the finding about subject. The state is Failed if notes contain trouble with the subject, and Warning
// if they contain only a hint. Otherwise the state is OK and the text is okText.
func newNoteFinding(notes redisconn.Notes, checkName string, subject redisconn.Subject, okText, remedy string) Finding {
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
			return Finding{checkName, group.state, strings.Join(texts, "; "), remedy}
		}
	}
	return Finding{Check: checkName, State: OK, Found: okText}
}

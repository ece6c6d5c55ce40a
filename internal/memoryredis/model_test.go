package memoryredis_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/memoryredis"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// callLua is a script that runs the Redis command in ARGV.
const callLua = `return redis.pcall(unpack(ARGV))`

// TestTheIndexAnswersLikeMiniredis sends the same random commands, from scripts and from clients, to a memoryredis,
// which has an index, and to a plain miniredis. All replies must be equal.
func TestTheIndexAnswersLikeMiniredis(t *testing.T) {
	t.Parallel()
	indexed, err := memoryredis.Start("secret")
	must.Succeed(t, err)
	t.Cleanup(indexed.Close)
	plain := miniredis.RunT(t)
	newClient := func(addr, password string) *redis.Client {
		client := redis.NewClient(&redis.Options{Addr: addr, Password: password, Protocol: 2})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	clients := []*redis.Client{newClient(indexed.Addr(), "secret"), newClient(plain.Addr(), "")}
	rapid.Check(t, func(t *rapid.T) {
		for _, c := range clients {
			c.FlushAll(t.Context())
		}
		m := &machine{clients: clients, servers: []*miniredis.Miniredis{indexed, plain}}
		m.fill(t)
		for range rapid.IntRange(1, 60).Draw(t, "number of commands") {
			m.step(t)
		}
	})
}

// machine draws commands and compares the replies of two servers.
type machine struct {
	clients []*redis.Client
	servers []*miniredis.Miniredis
}

// fill makes "names" a set whose members have the same score, and "scores" a set with different scores.
func (m *machine) fill(t *rapid.T) {
	names, scores := []string{"ZADD", "names"}, []string{"ZADD", "scores"}
	for range rapid.IntRange(60, 100).Draw(t, "members") {
		names, scores = append(names, "0", drawName(t)), append(scores, drawScore(t), drawName(t))
	}
	m.compare(t, true, names...)
	m.compare(t, true, scores...)
}

func drawName(t *rapid.T) string {
	return fmt.Sprint(rapid.SampledFrom([]string{"a", "b|", "b", "ü"}).Draw(t, "begin"), rapid.IntRange(0, 15).Draw(t, "name"))
}

func drawScore(t *rapid.T) string {
	return rapid.SampledFrom([]string{"-inf", "+inf", "0", "1.5", "3", "1790000000123", strconv.Itoa(rapid.IntRange(-3, 9).Draw(t, "number"))}).Draw(t, "score")
}

func (m *machine) step(t *rapid.T) {
	if rapid.IntRange(0, 19).Draw(t, "kind of step") == 0 {
		for _, s := range m.servers { // keys with a time to live expire without a command
			s.FastForward(time.Minute)
		}
		return
	}
	key := rapid.SampledFrom([]string{"names", "scores", "names", "scores", "text"}).Draw(t, "key")
	name, other, score := drawName(t), drawName(t), drawScore(t)
	bound := func(what string) string {
		return rapid.SampledFrom([]string{"-", "+", "[" + drawName(t), "(" + drawName(t), "[b|", "(b"}).Draw(t, what)
	}
	edge := func(what string) string {
		score := drawScore(t)
		if strings.HasSuffix(score, "inf") { // unlike Redis and the index, miniredis does not exclude "(-inf"
			return score
		}
		return rapid.SampledFrom([]string{"", "("}).Draw(t, what) + score
	}
	limit := []string{"LIMIT", strconv.Itoa(rapid.IntRange(0, 3).Draw(t, "offset")), strconv.Itoa(rapid.IntRange(-1, 5).Draw(t, "count"))}
	reads := [][]string{
		{"ZLEXCOUNT", "names", bound("from"), bound("to")},
		{"ZRANGEBYLEX", "names", bound("from"), bound("to")},
		append([]string{"ZRANGEBYLEX", "names", bound("from"), bound("to")}, limit...),
		{"ZCOUNT", key, edge("from"), edge("to")},
		{"ZRANGEBYSCORE", key, edge("from"), edge("to")},
		append([]string{"ZRANGEBYSCORE", key, edge("from"), edge("to")}, limit...),
		{"ZRANGEBYSCORE", key, edge("from"), edge("to"), "WITHSCORES"},
		{"ZRANK", key, name},
		{"ZSCORE", key, name},
		{"ZCARD", key},
	}
	writes := [][]string{
		{"ZADD", "names", "0", name, "0", other},
		{"ZADD", "scores", score, name, "1", other},
		{"ZADD", "scores", score, name},
		{"ZREM", key, name, other},
	}
	rareWrites := [][]string{
		{"ZADD", "scores", "NX", score, name},
		{"ZADD", "scores", "GT", "4", name},
		{"ZADD", "scores", "no number", name},
		{"ZADD", "text", score, name},
		{"ZINCRBY", "scores", "1", name},
		{"ZINCRBY", "scores", "-2", other},
		{"ZPOPMIN", "scores", "2"},
		{"ZREMRANGEBYSCORE", "scores", "1", "2"},
		{"ZREMRANGEBYLEX", "names", "[a", "(a2"},
		{"ZREMRANGEBYRANK", key, "0", "1"},
		{"PEXPIRE", key, "30000"},
		{"SET", "text", "x"},
		{"HSET", key, "field", "x"},
		{"DEL", key},
		{"RENAME", "scores", "names"},
		{"SET", key, "x"},
		{"FLUSHALL"},
	}
	commands := rapid.SampledFrom([][][]string{reads, reads, reads, writes, writes, writes, rareWrites}).Draw(t, "kind of command")
	m.compare(t, rapid.IntRange(0, 7).Draw(t, "from a script") > 0, rapid.SampledFrom(commands).Draw(t, "command")...)
}

// compare runs a command on both servers.
func (m *machine) compare(t *rapid.T, isScript bool, command ...string) {
	var replies [2]string
	inTransaction := !isScript && rapid.Bool().Draw(t, "in a transaction")
	for i, c := range m.clients {
		args := make([]any, 0, len(command)+3)
		if isScript {
			args = append(args, "EVAL", callLua, 0)
		}
		for _, arg := range command {
			args = append(args, arg)
		}
		pipe := c.Pipeline()
		if inTransaction {
			pipe = c.TxPipeline()
		}
		done := pipe.Do(t.Context(), args...)
		_, _ = pipe.Exec(t.Context())
		reply, err := done.Result()
		replies[i] = fmt.Sprint(reply, err)
	}
	if replies[0] != replies[1] {
		t.Fatalf("%q, script: %t: %s", command, isScript, cmp.Diff(replies[1], replies[0]))
	}
}

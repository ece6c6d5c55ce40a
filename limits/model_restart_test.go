package limits_test

import (
	"context"
	"crypto/sha1" //nolint:gosec // it names scripts
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/limits"
)

// histories that are tried in one run: each starts Redis some times.
const histories = 30

// TestModelOfRestarts is TestModel on a real Redis that is killed and started at any
// time: with what it had, with a snapshot of any time before, or without the tail of
// its log. What it has then is not believed by either replica until it was filled again,
// and then the model's answers are given. Reservations may come back that were decided
// long ago.
func TestModelOfRestarts(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"snapshots": nil, "log": {"--appendonly", "yes"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, left := testservers.Redis(t, args...), histories
			rapid.Check(t, func(rt *rapid.T) {
				if left--; left < 0 {
					return
				}
				defer func() {
					if rt.Failed() {
						left = 1 << 30 // it is run again until it is small
					}
				}()
				r := dial(t, server)
				defer func() { _ = r.direct.Close() }()
				m := &restarts{model: newModel(rt, r), r: r}
				defer m.close()
				moves := m.moves()
				moves["time passes"], moves["who was refused"] = m.pass, m.top
				if args == nil {
					moves["snapshot"], moves["redis is started anew"] = m.snapshot, m.older
				} else {
					r.logged = server.LogSize(t) // that of others is not to be cut
					moves["redis is started anew"] = m.cut
				}
				rt.Repeat(moves)
			})
		})
	}
}

// restarts is a model whose Redis is started with older data.
type restarts struct {
	*model

	r         *realRedis
	snapshots []snapshot
}

type snapshot struct {
	data []byte
	open []modelStart // reservations in it
}

func (m *restarts) snapshot(*rapid.T) {
	m.snapshots = append(m.snapshots, snapshot{m.r.Snapshot(m.r.tb), slices.Clone(m.open)})
}

// older starts Redis with what it has, or with any snapshot.
func (m *restarts) older(t *rapid.T) {
	m.snapshot(t)
	from := m.snapshots[rapid.IntRange(0, len(m.snapshots)-1).Draw(t, "snapshot")]
	m.r.restart(m.now, func() { m.r.Restore(m.r.tb, from.data) })
	m.believed = false
	lost := slices.DeleteFunc(m.open, func(s modelStart) bool {
		return slices.ContainsFunc(from.open, func(o modelStart) bool { return o.lease == s.lease })
	})
	m.open = slices.Clone(from.open)
	if rapid.Bool().Draw(t, "filled first") {
		m.settle(t)
		m.rebuild(t)
	}
	for _, s := range lost { // who reserved it says so now, and finds no reservation
		m.decide(t, s, rapid.Bool().Draw(t, "started"), 1)
	}
}

// top only has to work: it is for people.
func (m *restarts) top(t *rapid.T) {
	if _, err := m.replica(t).Top(context.Background(), "plain", 5); err != nil {
		t.Fatal(err)
	}
}

// pass lets the pass over the limits have its turn, which settles what is overdue: what
// comes back is known by its lease for a minute.
func (m *restarts) pass(t *rapid.T) {
	if slices.ContainsFunc(m.open, func(s modelStart) bool { _, back := m.decided[s.lease]; return back }) {
		m.advance(limits.SettleWithin)
		m.settle(t)
	}
	m.model.pass(t)
}

// cut starts Redis without the tail of its log, which may have torn the forms apart: so
// all reservations are decided at once, as the pass over the limits does.
func (m *restarts) cut(t *rapid.T) {
	lost := rapid.Int64Range(0, 3000).Draw(t, "lost")
	m.r.restart(m.now, func() { m.r.CutLog(m.r.tb, m.r.LogSize(m.r.tb)-lost, m.r.logged) })
	m.believed = false
	for _, s := range m.open {
		s.group = ""
		m.decide(t, s, rapid.Bool().Draw(t, "started"), 1)
	}
	m.open = nil
	for form := range m.forms {
		left, err := m.r.direct.ZRange(context.Background(), "limits:{"+form+"}:open", 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, lease := range left {
			s, ok := m.decided[lease]
			if !ok { // a reservation that was given back, since Redis had been started anew
				s = modelStart{lease: lease, account: "a", at: m.now}
			}
			s.group = ""
			m.decide(t, s, s.counted, 1)
		}
	}
}

// realRedis is one with a clock of the test. Its keys never end.
type realRedis struct {
	*testservers.RedisServer

	tb     testing.TB
	direct *redis.Client
	logged int64
}

// clockKey is where the clock of a real Redis stands.
const clockKey = "test:clock"

// dial empties a Redis.
func dial(tb testing.TB, server *testservers.RedisServer) *realRedis {
	tb.Helper()
	r := &realRedis{RedisServer: server, tb: tb, direct: redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: 20 * time.Second})}
	r.flush()
	return r
}

func (r *realRedis) connect() *server {
	s := connect(r.Addr, false)
	s.client.AddHook(&ownClock{sums: make(map[string]string)})
	return s
}

func (r *realRedis) endsKeys() bool    { return false }
func (r *realRedis) age(time.Duration) {}
func (r *realRedis) flush()            { r.must(r.direct.FlushAll(context.Background()).Err()) }
func (r *realRedis) set(now time.Time) {
	r.must(r.direct.Set(context.Background(), clockKey, now.UnixMilli(), 0).Err())
}

func (r *realRedis) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

func (r *realRedis) restart(now time.Time, down func()) {
	r.Kill()
	down()
	r.Start()
	_ = r.direct.Close()
	r.direct = redis.NewClient(r.direct.Options())
	r.set(now)
}

// ownClock puts something in front of each script: TIME is the test's, and nothing
// ends, since the time of Redis itself does not pass as the test's does. And what is not
// among the KEYS of a call is not touched.
type ownClock struct {
	mu   sync.Mutex
	sums map[string]string // of a script -> with what is in front of it
}

const inFront = `local real, declared = redis, {}
for _, key in ipairs(KEYS) do declared[key] = true end
local redis = setmetatable({ call = function(command, ...)
  if command == 'TIME' then
    local now = tonumber(real.call('GET', '` + clockKey + `'))
    return { math.floor(now / 1000), now % 1000 * 1000 }
  elseif not declared[(...)] then
    error('not a key of the call: ' .. tostring((...)))
  elseif command == 'PEXPIRE' then
    return 1
  elseif command == 'SET' then
    local key, value = ...
    return real.call('SET', key, value)
  end
  return real.call(command, ...)
end }, { __index = real })
`

// DialHook changes nothing.
func (*ownClock) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook changes nothing: scripts come alone.
func (*ownClock) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook changes scripts.
func (c *ownClock) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch args := cmd.Args(); strings.ToLower(cmd.Name()) {
		case "eval":
			source := fmt.Sprint(args[1])
			args[1] = inFront + source
			c.learn(source)
		case "evalsha":
			args[1] = c.sum(fmt.Sprint(args[1]))
		}
		return next(ctx, cmd)
	}
}

func (c *ownClock) learn(source string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sums[sumOf(source)] = sumOf(inFront + source)
}

func (c *ownClock) sum(of string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sum, known := c.sums[of]; known {
		return sum
	}
	return strings.Repeat("0", 40) // so that it is sent whole
}

func sumOf(source string) string {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as Redis names scripts
	return hex.EncodeToString(sum[:])
}

package limits_test

import (
	"context"
	"crypto/sha1" // Redis names scripts by their SHA-1 hash
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// modelRedis is a Redis whose clock the test sets. The histories of the model tests run on it.
type modelRedis interface {
	connect() *redisLimiter
	setClock(now time.Time)
	expireKeys(by time.Duration) // deletes keys whose TTL has ended, if canExpireKeys returns true
	canExpireKeys() bool
	flush()
}

type inProcessRedis struct {
	*miniredis.Miniredis

	tb     testing.TB
	hasTTL bool // whether keys expire, as in a real Redis
}

func (r inProcessRedis) connect() *redisLimiter {
	return connect(r.tb, servers.RedisAt{Addr: r.Addr()})
}
func (r inProcessRedis) setClock(now time.Time) { r.SetTime(now) }
func (r inProcessRedis) canExpireKeys() bool    { return r.hasTTL }
func (r inProcessRedis) flush()                 { r.FlushAll() }
func (r inProcessRedis) expireKeys(by time.Duration) {
	if r.hasTTL {
		r.FastForward(by)
	}
}

// realRedis is a real Redis whose scripts use the clock of the test. Its keys never expire.
type realRedis struct {
	*servers.RedisServer

	tb           testing.TB
	directClient *redis.Client
	minLogBytes  int64
}

// clockKey is the key in which a real Redis holds the time that the test has set.
const clockKey = "test:clock"

// newRealRedis connects to a real Redis server and deletes all its data.
func newRealRedis(tb testing.TB, server *servers.RedisServer) *realRedis {
	tb.Helper()
	r := &realRedis{RedisServer: server, tb: tb, directClient: redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: 20 * time.Second})}
	r.flush()
	return r
}

func (r *realRedis) connect() *redisLimiter {
	s := connect(r.tb, servers.RedisAt{Addr: r.Addr})
	s.client.AddHook(&testClockHook{changedDigests: make(map[string]string)})
	return s
}

func (r *realRedis) canExpireKeys() bool      { return false }
func (r *realRedis) expireKeys(time.Duration) {}
func (r *realRedis) flush()                   { r.must(r.directClient.FlushAll(context.Background()).Err()) }

func (r *realRedis) setClock(now time.Time) {
	r.must(r.directClient.Set(context.Background(), clockKey, now.UnixMilli(), 0).Err())
}

func (r *realRedis) must(err error) {
	r.tb.Helper()
	must.Succeed(r.tb, err)
}

func (r *realRedis) restart(now time.Time, whileDown func()) {
	r.Kill()
	whileDown()
	r.Start()
	_ = r.directClient.Close()
	r.directClient = redis.NewClient(r.directClient.Options())
	r.setClock(now)
}

// testClockHook inserts Lua code in front of each script. Because of this code, TIME returns the clock of the test. The code also leaves
// out all TTLs, because the clock of Redis itself differs from the clock of the test. If a script uses a key that is not in KEYS, the code
// raises an error.
type testClockHook struct {
	mu             sync.Mutex
	changedDigests map[string]string // digest of a script -> digest of the changed script
}

const clockPrelude = `local real, declared = redis, {}
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
    local key, value, nx = ...
    if nx == 'NX' then return real.call('SET', key, value, nx) end
    return real.call('SET', key, value)
  end
  return real.call(command, ...)
end }, { __index = real })
`

// DialHook leaves connections unchanged.
func (*testClockHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook leaves pipelines unchanged, because no script is sent in a pipeline.
func (*testClockHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook inserts the code in front of each script that is sent.
func (c *testClockHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch args := cmd.Args(); strings.ToLower(cmd.Name()) {
		case "eval":
			source := fmt.Sprint(args[1])
			args[1] = clockPrelude + source
			c.recordScript(source)
		case "evalsha":
			args[1] = c.changedDigest(fmt.Sprint(args[1]))
		}
		return next(ctx, cmd)
	}
}

func (c *testClockHook) recordScript(source string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changedDigests[scriptDigest(source)] = scriptDigest(clockPrelude + source)
}

func (c *testClockHook) changedDigest(digest string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sum, known := c.changedDigests[digest]; known {
		return sum
	}
	return strings.Repeat("0", 40) // an unknown digest, so that the source is sent
}

func scriptDigest(source string) string {
	sum := sha1.Sum([]byte(source)) // as Redis names scripts
	return hex.EncodeToString(sum[:])
}

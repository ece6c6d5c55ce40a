package slots_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/await"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// TestForgottenScriptsAreSentAgain checks a Redis that has lost its loaded scripts after a restart or a flush. Calls of the semaphore must
// succeed, because the scripts are sent again.
func TestForgottenScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	s, _ := newStoppableRedis(t)
	pool := t.Name()
	flush := func() {
		t.Helper()
		if err := s.client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	s.restore(t, pool, slots.Config{Capacity: 2, Version: 1})
	flush()
	expectEqual(t, "acquire", s.acquire(t, pool, "a"), acquiredSlot(0))
	flush()
	expectEqual(t, "acquire again", s.acquire(t, pool, "a"), acquiredSlot(0))
	flush()
	expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{0: "a"})
	flush()
	if !s.configure(t, pool, 3, 2) {
		t.Error("not configured")
	}
	flush()
	if got, err := s.Adopt(t.Context(), pool, []slots.LedgerGrant{{Lease: "b", Device: "d", Slot: 1}}); err != nil || !got[0] {
		t.Error(got, err)
	}
	flush()
	expectEqual(t, "release", s.release(t, pool, "a"), []bool{true})
}

func TestRestartedRedisGrantsNothingUntilRestored(t *testing.T) {
	t.Parallel()
	s, redisServer := newStoppableRedis(t)
	pool := s.restorePool(t, 1)
	s.acquire(t, pool, "a")
	redisServer.Kill()
	if _, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, newRequests(1e9, "b")); !errors.Is(err, slots.ErrUnavailable) {
		t.Fatalf("no server: %v, want ErrUnavailable", err)
	}
	redisServer.Start()
	await.True(t, "an answer", func() bool {
		out, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, newRequests(1e9, "b"))
		if err == nil && out[0].Status != slots.StatusUnknown {
			t.Fatalf("after a restart without data: %+v, want unknown", out[0])
		}
		return err == nil
	})
	s.restore(t, pool, slots.Config{Capacity: 1, Version: 1}, newHoldings("a", 1)...)
	expectEqual(t, "restored", s.acquireAll(t, pool, "b", "a.0"), []slots.Acquisition{{Status: slots.StatusFull}, acquiredSlot(0)})
}

// TestUnavailableIsOneError checks calls while Redis does not work. Every call of the semaphore must return ErrUnavailable, whatever the
// cause is.
func TestUnavailableIsOneError(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"loading":      "-LOADING Redis is loading the dataset in memory",
		"read-only":    "-READONLY You can't write against a read only replica.",
		"cluster down": "-CLUSTERDOWN The cluster is down",
		"memory":       "-OOM command not allowed when used memory > 'maxmemory'.",
		"auth":         "-NOAUTH Authentication required.",
		"silence":      "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := redisconn.Options(startRefusingServer(t, answer))
			opts.ReadTimeout = 50 * time.Millisecond
			client := redis.NewUniversalClient(opts)
			t.Cleanup(func() { _ = client.Close() })
			expectAllUnavailable(t, slots.New(client))
		})
	}
	t.Run("network", func(t *testing.T) {
		t.Parallel()
		client := redis.NewUniversalClient(redisconn.Options(servers.FreeAddr(t)))
		t.Cleanup(func() { _ = client.Close() })
		expectAllUnavailable(t, slots.New(client))
	})
}

func expectAllUnavailable(t *testing.T, s *slots.Semaphore) {
	t.Helper()
	for name, c := range replayCalls() {
		if _, err := c.run(t.Context(), s, "pool"); !errors.Is(err, slots.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
	if err := s.Forget(t.Context(), "pool"); !errors.Is(err, slots.ErrUnavailable) {
		t.Errorf("forget: %v, want ErrUnavailable", err)
	}
}

// startRefusingServer starts a fake Redis that gives the same answer to every command. If answer is empty, it gives
// no answer.
func startRefusingServer(t *testing.T, answer string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answerCommands(conn, answer)
		}
	}()
	return l.Addr().String()
}

func answerCommands(conn net.Conn, answer string) {
	defer conn.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		commands := bytes.Count(buf[:n], []byte("*"))
		if answer != "" {
			_, _ = conn.Write([]byte(strings.Repeat(answer+"\r\n", commands)))
		}
	}
}

// TestDemotedRedisIsUnavailable checks a real Redis primary that becomes a read-only replica. Calls must return ErrUnavailable.
func TestDemotedRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	s, _ := newStoppableRedis(t)
	pool := s.restorePool(t, 2)
	s.acquire(t, pool, "a")
	if err := s.client.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int32
	proxy := servers.NewProxy(t, s.Addr)
	proxy.OnRequest(func(b []byte) { sent.Add(int32(bytes.Count(bytes.ToLower(b), []byte("evalsha")))) })
	_, _, err := slots.New(s.dial(t, proxy.Addr)).Acquire(t.Context(), pool, slots.Pace{}, newRequests(1e9, "b"))
	if !errors.Is(err, slots.ErrUnavailable) || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("acquire: %v", err)
	}
	if got := sent.Load(); got != 1 {
		t.Errorf("sent %d times: an answer is final", got)
	}
	if _, _, err := s.Release(t.Context(), pool, slots.Pace{}, []string{"a"}); !errors.Is(err, slots.ErrUnavailable) {
		t.Errorf("release: %v", err)
	}
	if err := s.client.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	expectEqual(t, "untouched", s.slotHolders(t, pool), map[int]string{0: "a"})
	expectEqual(t, "and working", s.acquire(t, pool, "b"), acquiredSlot(1))
}

// TestOutOfMemoryLeavesNothingHalfDone checks a Redis whose memory is full. A call that fails for this reason must change nothing. A
// release of a slot must still work, because it needs no memory.
func TestOutOfMemoryLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	s, _ := newStoppableRedis(t)
	pool, other := s.restorePool(t, 2), t.Name()+".other"
	s.acquire(t, pool, "a")
	before := s.readSnapshot(t, pool)
	memory := func(limit string) {
		t.Helper()
		if err := s.client.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	memory("1")
	if _, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, newRequests(1e9, "b")); !errors.Is(err, slots.ErrUnavailable) {
		t.Errorf("acquire: %v", err)
	}
	if _, err := s.Configure(t.Context(), pool, slots.Config{Capacity: 9, Version: 9}); !errors.Is(err, slots.ErrUnavailable) {
		t.Errorf("configure: %v", err)
	}
	expectEqual(t, "unchanged", s.readSnapshot(t, pool), before)
	if freed, _, err := s.Release(t.Context(), pool, slots.Pace{}, []string{"a"}); err != nil || !freed[0] {
		t.Errorf("release must work without memory: %v, %v", freed, err)
	}
	_, err := s.Restore(t.Context(), other, slots.Config{Capacity: 1}, nil)
	memory("0")
	if got := s.readSnapshot(t, other); (err == nil) != got.PoolKnown {
		t.Errorf("restore: %v, but known is %v", err, got.PoolKnown)
	}
	expectEqual(t, "working again", s.acquireAll(t, pool, "b", "c"), []slots.Acquisition{acquiredSlot(0), acquiredSlot(1)})
}

// TestCallEndsWithItsContext checks a call to a Redis that hangs. The call must end when the context of its caller ends, long before the
// read timeout of the client, which is a minute in tests.
func TestCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s, redisServer := newStoppableRedis(t)
	pool := s.restorePool(t, 1)
	redisServer.Pause()
	defer redisServer.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, _, err := s.Acquire(ctx, pool, slots.Pace{}, newRequests(1e9, "a"))
	if took := time.Since(begin); !errors.Is(err, slots.ErrUnavailable) || took > 30*time.Second {
		t.Errorf("%v after %s, want ErrUnavailable after 50 ms", err, took)
	}
}

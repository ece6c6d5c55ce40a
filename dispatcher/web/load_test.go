package web_test

import (
	"encoding/binary"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fleetslots/dispatcher/internal/testbackends"
	"github.com/fleetslots/dispatcher/internal/testservers"
)

// statements counts, on each connection to Postgres, what is sent to be run.
type statements struct{ atomic.Int64 }

// connection looks at the messages of one: their type, four bytes of length,
// and the rest. The first has no type. B binds a prepared statement, Q is a
// plain one.
func (s *statements) connection() func([]byte) {
	var pending []byte
	first := true
	return func(chunk []byte) {
		pending = append(pending, chunk...)
		for {
			head := 1
			if first {
				head = 0
			}
			if len(pending) < head+4 {
				return
			}
			length := head + int(binary.BigEndian.Uint32(pending[head:]))
			if len(pending) < length {
				return
			}
			if !first && (pending[0] == 'B' || pending[0] == 'Q') {
				s.Add(1)
			}
			first, pending = false, pending[length:]
		}
	}
}

// Fifty open pages ask Postgres as much as one of each: while the log is read
// ten times, a page that is open to many is read as often as one that is open
// to one.
func TestManyPagesAskPostgresOnce(t *testing.T) {
	t.Parallel()
	dsn := postgres.NewLedger(t)
	var sent statements
	_, rest, _ := strings.Cut(dsn, "@")
	address, _, _ := strings.Cut(rest, "/")
	proxy := testservers.NewProxy(t, address)
	proxy.OnConnection(sent.connection)
	b := replica(t, testbackends.Postgres(t, strings.Replace(dsn, address, proxy.Addr, 1)), cache.NewDatabase(t))
	b.pool("p", 60, devices(3)...)
	b.grant("d-1")
	pages := []string{"/", "/pools/p", "/batches", "/batches/1", "/tasks"}
	watch := func(times int) {
		for _, page := range pages {
			for range times {
				stream := b.stream(page)
				b.await(stream, page, func(u update) bool { return u.Main != "" })
			}
		}
	}
	ofTicks := func() float64 { // statements for each tick
		logs, before := b.store.logs.Load(), sent.Load()
		b.until("ten looks at the log", func() bool { return b.store.logs.Load() >= logs+10 })
		return float64(sent.Load()-before) / float64(b.store.logs.Load()-logs)
	}
	watch(1)
	one := ofTicks()
	watch(9)
	many := ofTicks()
	t.Logf("%.1f statements a tick for 5 open pages, %.1f for 50", one, many)
	if one < 5 || many > 1.5*one {
		t.Errorf("%.1f statements a tick for 5 open pages, %.1f for 50", one, many)
	}
}

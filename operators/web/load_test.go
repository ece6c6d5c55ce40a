package web_test

import (
	"encoding/binary"
	"strings"
	"sync/atomic"
	"testing"

	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// statementCounter counts the statements that are sent to Postgres.
type statementCounter struct{ atomic.Int64 }

// newConnectionParser returns a function that counts the statements of one connection to Postgres. Each message has a
// type, a length of four bytes, and a body. Only the first message has no type. The types B (a prepared statement is
// bound) and Q (a simple query) are counted.
func (s *statementCounter) newConnectionParser() func([]byte) {
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

// TestManyPagesAskPostgresOnce checks that fifty open pages cost Postgres as much as five. Each page is read at
// most once per read of the log, however many viewers have it open, and no query is sent per viewer. A busy machine
// reads pages less often than the log, so the allowed number of statements grows with both numbers of reads.
func TestManyPagesAskPostgresOnce(t *testing.T) {
	t.Parallel()
	at := shared.NewStores(t)
	var sent statementCounter
	_, rest, _ := strings.Cut(at.DSN, "@")
	address, _, _ := strings.Cut(rest, "/")
	proxy := servers.NewProxy(t, address)
	proxy.OnConnection(sent.newConnectionParser)
	at.Ledger = backends.OpenPostgres(t, strings.Replace(at.DSN, address, proxy.Addr, 1))
	b := startReplica(t, at)
	b.createPool("p", 60, deviceIDs(3)...)
	b.ReportUntilGranted("d-1")
	pages := []string{"/", "/pools/p", "/batches", "/batches/1", "/tasks"}
	for _, page := range pages {
		for range 10 {
			stream := b.openStream(page)
			b.awaitUpdate(stream, page, func(u pageUpdate) bool { return u.Main != "" })
		}
	}
	looks, readings, asked := b.store.markReads.Load(), b.store.snapshotReads.Load(), sent.Load()
	b.Await("ten looks at the log", func() bool { return b.store.markReads.Load() >= looks+10 })
	asked, readings, looks = sent.Load()-asked, b.store.snapshotReads.Load()-readings, b.store.markReads.Load()-looks
	t.Logf("%d statements, %d readings and %d looks at the log for 50 open pages", asked, readings, looks)
	if most := int64(len(pages)) * (looks + 1); readings == 0 || readings > most {
		t.Errorf("%d readings in %d looks at the log, want 1 to %d", readings, looks, most)
	}
	if most := 12 * (readings + looks + 1); asked > most {
		t.Errorf("%d statements for %d readings and %d looks at the log, want at most %d", asked, readings, looks, most)
	}
}

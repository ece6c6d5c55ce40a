package store_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// TestASilentServerKeepsNoConnection checks a database server that vanishes without closing its connections. The statements in progress on
// all connections must end with an error. The ledger must work again when the server is back.
func TestASilentServerKeepsNoConnection(t *testing.T) {
	t.Parallel()
	const conns = 4
	proxy := servers.NewProxy(t, sharedPostgres.Server(t).Addr())
	dsn := sharedPostgres.NewLedger(t)
	// The ledger waits for an answer at most 5 s longer than StatementTimeout.
	s, err := store.OpenPostgres(t.Context(), strings.Replace(dsn, sharedPostgres.Server(t).Addr(), proxy.Addr, 1), store.Options{MaxOpenConns: conns, StatementTimeout: time.Second})
	must.Succeed(t, err)
	defer s.Close()
	l := &ledger{TB: t, Store: s}
	var underway sync.WaitGroup
	underway.Add(conns)
	sent := func(b []byte) {
		if bytes.Contains(b, []byte("pg_sleep")) {
			proxy.HoldReplies() // All connections are open at this point.
			underway.Done()
		}
	}
	l.openConns(conns)
	proxy.OnRequest(sent)
	ended := make(chan error, conns)
	for range conns {
		go func() {
			_, err := l.DB().ExecContext(t.Context(), "SELECT pg_sleep(0)")
			ended <- err
		}()
	}
	underway.Wait()
	for range conns {
		err := await.Receive(t, ended, "a statement waits for ever")
		if err == nil {
			t.Error("a statement without an answer succeeded")
		}
	}
	proxy.OnRequest(nil)
	proxy.ReleaseReplies()
	l.awaitCondition(func() bool { // On a machine that stalls, a statement may exceed its timeout.
		_, err := l.DeviceViews(t.Context(), []string{"d"})
		return err == nil
	})
}

// TestClosingWaitsForNoAnswer checks that Close does not wait for answers of a silent database server, even if its
// connections have prepared statements.
func TestClosingWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, sharedPostgres.Server(t).Addr())
	dsn := strings.Replace(sharedPostgres.NewLedger(t), sharedPostgres.Server(t).Addr(), proxy.Addr, 1)
	s, err := store.OpenPostgres(t.Context(), dsn+"&statement_timeout=0", store.Options{}) // The wait for an answer has no limit.
	must.Succeed(t, err)
	l := &ledger{TB: t, Store: s}
	l.openConns(4)
	_, err = l.DeviceViews(t.Context(), []string{"d"})
	must.Succeed(t, err)
	proxy.HoldReplies()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(backends.LongTimeout):
		t.Error("it waits for an answer")
	}
	proxy.ReleaseReplies()
}

// openConns makes database/sql open this number of connections.
func (l *ledger) openConns(conns int) {
	l.Helper()
	for range conns {
		conn, err := l.DB().Conn(l.Context())
		l.must(err)
		defer func() { l.must(conn.Close()) }() // No connection is closed before all are open.
	}
}

// TestTheEarlierLimitOfAConnectionHolds checks that a read ends at the deadline that the database driver sets for its handshake, or at the
// limit of the ledger if that is earlier.
func TestTheEarlierLimitOfAConnectionHolds(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // The server behind this address sends nothing.
	must.Succeed(t, err)
	defer listener.Close()
	gaveUp := func(limit, own time.Duration) error {
		conn, err := store.Dial(t.Context(), limit, listener.Addr().String())
		must.Succeed(t, err)
		defer conn.Close()
		if own > 0 { // The driver sets such a deadline for its handshake.
			must.Succeed(t, conn.SetDeadline(time.Now().Add(own)))
		}
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	const soon, late = 20 * time.Millisecond, time.Hour
	for _, c := range []struct{ limit, own time.Duration }{{soon, 0}, {soon, late}, {late, soon}, {0, soon}} {
		if err := gaveUp(c.limit, c.own); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%+v: %v, want the earlier limit", c, err)
		}
	}
}

func TestAnswersAreWaitedForAsStatementsMayTake(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]time.Duration{
		"10000": 15 * time.Second, "250ms": 5250 * time.Millisecond, "7s": 12 * time.Second, "2 min": 125 * time.Second, "1h": time.Hour + 5*time.Second,
		"0": 0, "": 0, "-1": 0, "soon": 0, "1 year": 0,
	} {
		if got := store.AnswerLimit(setting); got != want {
			t.Errorf("%q: %s, want %s", setting, got, want)
		}
	}
}

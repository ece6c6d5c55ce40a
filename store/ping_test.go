package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// TestAServerThatHangsIsLeftAlone checks a database server that accepts statements but does not answer. Calls that wait must end with an
// error. New calls must be refused at once and not be sent. When the server answers again, the ledger must work again.
func TestAServerThatHangsIsLeftAlone(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, sharedPostgres.Server(t).Addr())
	dsn := strings.Replace(sharedPostgres.NewLedger(t), sharedPostgres.Server(t).Addr(), proxy.Addr, 1)
	s, err := store.OpenPostgres(t.Context(), dsn+"&statement_timeout=0", store.Options{MaxOpenConns: 4}) // no limit for answers
	must.Succeed(t, err)
	defer s.Close()
	defer proxy.ReleaseReplies()
	l := &ledger{TB: t, Store: s}
	l.openConns(4)
	proxy.HoldReplies()
	const callers = 20
	ended := make(chan error, callers)
	for range callers {
		go func() {
			_, err := l.DeviceViews(t.Context(), []string{"d"})
			ended <- err
		}()
	}
	for range callers {
		err := await.Receive(t, ended, "a reading waits for ever")
		if err == nil {
			t.Error("a reading without an answer succeeded")
		}
	}
	asked := make(chan struct{}, 100)
	proxy.OnRequest(func(b []byte) {
		if strings.Contains(string(b), "devices") {
			asked <- struct{}{}
		}
	})
	for range cap(asked) {
		if _, err := l.DeviceViews(t.Context(), []string{"d"}); !errors.Is(err, store.ErrNoAnswer) {
			t.Fatalf("while it is silent: %v", err)
		}
	}
	if len(asked) > 0 {
		t.Errorf("%d readings were sent", len(asked))
	}
	proxy.OnRequest(nil)
	proxy.ReleaseReplies()
	l.awaitCondition(func() bool {
		_, err := l.DeviceViews(t.Context(), []string{"d"})
		return err == nil
	})
}

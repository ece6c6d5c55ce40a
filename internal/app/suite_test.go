package app

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const (
	adminToken = "admin-token-of-the-test"
	fleetToken = "fleet-token-of-the-test"
	patience   = await.Patience
)

var sharedPostgres servers.SharedPostgres //nolint:gochecknoglobals // one server for all tests, closed by TestMain

// TestMain checks, after all tests, that everything that was stopped has left no goroutine behind.
func TestMain(m *testing.M) {
	code := m.Run()
	sharedPostgres.Close()
	http.DefaultClient.CloseIdleConnections()
	// This goroutine of the Redis library checks once per second whether its pool was closed.
	dial := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
	if err := goleak.Find(dial); code == 0 && err != nil {
		slog.New(slog.NewTextHandler(os.Stderr, nil)).Error("goroutines left", "err", err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // TestMain is the main of tests
}

func discardLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

// instance is a dispatcher that runs in this process.
type instance struct {
	url          string
	admin, fleet string
	stop         func() error // stops the dispatcher and returns the error of Run; may be called only once
}

// startInstance runs a dispatcher until its function stop is called or the test ends.
func startInstance(t *testing.T, i instance, run func(ctx context.Context, started func()) error) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- run(ctx, func() { close(started) }) }()
	select {
	case <-started:
	case err := <-ended:
		cancel()
		t.Fatalf("ended before it served: %v", err)
	}
	stopped := false
	i.stop = func() error {
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			t.Error("did not end")
			return nil
		}
	}
	t.Cleanup(func() {
		if stopped {
			return
		}
		if err := i.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return &i
}

// client returns a client of the dispatcher for this test.
func (i *instance) client(t *testing.T) rig.Client {
	t.Helper()
	return rig.NewClient(t, i.url, i.admin, i.fleet)
}

// call sends a request with a token and returns the status and the body.
func (i *instance) call(t *testing.T, method, path, token, body string) (int, []byte) {
	t.Helper()
	a := i.client(t).Call(method, path, token, bodyOrNone(body))
	return a.Status, a.Body
}

// callOperator sends a request with the operator token. The request must succeed. callOperator returns the body of the
// response.
func (i *instance) callOperator(t *testing.T, method, path, body string) []byte {
	t.Helper()
	return i.client(t).Operate(method, path, bodyOrNone(body))
}

// bodyOrNone returns the body, or nil if it is empty.
func bodyOrNone(body string) any {
	if body == "" {
		return nil
	}
	return body
}

// sendReport sends a report of a device. While the dispatcher is not ready, it sends the report again.
func (i *instance) sendReport(t *testing.T, device, body string) devices.Reply {
	t.Helper()
	return i.client(t).Report(device, body)
}

func decodeReply(t *testing.T, content []byte) devices.Reply {
	t.Helper()
	var reply devices.Reply
	if err := json.Unmarshal(content, &reply); err != nil {
		t.Fatalf("reply %s: %v", content, err)
	}
	return reply
}

// waitForBroker waits until the dispatcher is connected to its MQTT broker.
func waitForBroker(t *testing.T, i *instance) {
	t.Helper()
	await.True(t, "the dispatcher at the broker", func() bool {
		_, body := i.call(t, http.MethodGet, "/readyz", "", "")
		return bytes.Contains(body, []byte(`"mqtt":"ok"`))
	})
}

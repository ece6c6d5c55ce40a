package dynsec_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/dynsec"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestGivenUpNeverComesLater checks a command that a replica abandoned while the broker hung. The command must not take effect after a
// later command of any replica.
func TestGivenUpNeverComesLater(t *testing.T) {
	t.Parallel()
	b := servers.StartMosquittoDynsec(t)
	one, two := newClient(t, b), newClient(t, b)
	for round := range 5 {
		device := devices.ID(fmt.Sprint("d-", round))
		must.Succeed(t, one.Set(t.Context(), devices.Account{Device: device, Password: "first", Enabled: true}))
		done := make(chan error)
		b.WhilePaused(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := one.Set(ctx, devices.Account{Device: device, Password: "stale", Enabled: true}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("set at a broker that hangs: %v", err)
			}
			go func() {
				done <- two.Set(t.Context(), devices.Account{Device: device, Password: "fresh", Enabled: true})
			}()
		})
		must.Succeed(t, <-done)
		must.Succeed(t, one.Enable(t.Context(), "nobody")) // It is answered after everything that was sent before.
		if !mayConnect(t, b.Addr, string(device), "fresh") || mayConnect(t, b.Addr, string(device), "stale") {
			t.Fatalf("round %d: the account has the secret that was given up", round)
		}
	}
}

// TestConnectingIsGivenUpAtOnce checks a broker that accepts the connection and then stops answering: Check ends as
// soon as its ctx ends.
func TestConnectingIsGivenUpAtOnce(t *testing.T) {
	t.Parallel()
	b := servers.StartMosquittoDynsec(t)
	proxy := servers.NewProxy(t, strings.TrimPrefix(b.DispatcherURL, "mqtt://"))
	ctx, giveUp := context.WithCancel(t.Context())
	proxy.OnRequest(func(packet []byte) {
		if packet[0] == 0x82 { // SUBSCRIBE
			proxy.HoldReplies()
			giveUp()
		}
	})
	c, err := dynsec.New(dynsec.Options{
		URL: "mqtt://" + proxy.Addr, User: servers.DispatcherUser, Password: servers.DispatcherPassword,
	})
	must.Succeed(t, err)
	if err := c.Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("check that was given up: %v", err)
	}
}

// TestGivenUpOnTheWayNeverArrives checks an abandoned command that is still on its way when another replica
// connects. The broker must drop it, because the ledger already has a newer secret.
func TestGivenUpOnTheWayNeverArrives(t *testing.T) {
	t.Parallel()
	b := servers.StartMosquittoDynsec(t)
	slow := servers.NewProxy(t, strings.TrimPrefix(b.DispatcherURL, "mqtt://"))
	one, err := dynsec.New(dynsec.Options{
		URL: "mqtt://" + slow.Addr, User: servers.DispatcherUser, Password: servers.DispatcherPassword,
	})
	must.Succeed(t, err)
	t.Cleanup(func() { _ = one.Close() })
	must.Succeed(t, one.Set(t.Context(), devices.Account{Device: "a", Password: "first", Enabled: true}))
	underway, arrive := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow.OnRequest(func(text []byte) {
		if bytes.Contains(text, []byte("stale")) && bytes.Contains(text, []byte("modifyClient")) {
			once.Do(func() { close(underway) })
			slow.HoldReplies() // An answer that nobody expects would end the connection.
			<-arrive
		}
	})
	ctx, giveUp := context.WithCancel(t.Context())
	go func() {
		<-underway
		giveUp()
	}()
	if err := one.Set(ctx, devices.Account{Device: "a", Password: "stale", Enabled: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("set that was given up: %v", err)
	}
	two := newClient(t, b)
	must.Succeed(t, two.Set(t.Context(), devices.Account{Device: "a", Password: "fresh", Enabled: true}))
	close(arrive)
	for range 20 { // For this time the command may still be on its way.
		must.Succeed(t, two.Enable(t.Context(), "a"))
		if !mayConnect(t, b.Addr, "a", "fresh") {
			t.Fatal("the account has the secret that was given up")
		}
	}
}

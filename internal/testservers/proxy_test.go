package testservers_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/testservers"
)

func TestProxyCutAndHeal(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, testservers.Redis(t).Addr)
	c := client(t, proxy.Addr)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	for range 2 { // the open connection, then a new one
		if err := c.Ping(t.Context()).Err(); err == nil {
			t.Fatal("an answer through a cut proxy")
		}
	}
	proxy.Heal()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestProxyDropsRepliesOfExecutedCommands(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, testservers.Redis(t).Addr)
	proxy.OnRequest(func(b []byte) {
		if bytes.Contains(bytes.ToUpper(b), []byte("INCR")) && proxy.Dropped() == 0 {
			proxy.DropReplies(1)
		}
	})
	c := client(t, proxy.Addr)
	if err := c.Incr(t.Context(), "n").Err(); err == nil {
		t.Fatal("the reply was not dropped")
	}
	if got, err := c.Incr(t.Context(), "n").Result(); got != 2 || err != nil {
		t.Fatalf("second increment: %d, %v; want 2: the first was executed", got, err)
	}
	if got := proxy.Dropped(); got != 1 {
		t.Fatalf("%d replies dropped, want 1", got)
	}
}

func TestProxyHoldsReplies(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, testservers.Redis(t).Addr)
	c := client(t, proxy.Addr)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	proxy.HoldReplies()
	if err := c.Ping(within(t, 100*time.Millisecond)).Err(); err == nil {
		t.Fatal("a reply came while they were held")
	}
	answered := make(chan error, 1)
	go func() { answered <- client(t, proxy.Addr).Ping(t.Context()).Err() }()
	proxy.ReleaseReplies()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
}

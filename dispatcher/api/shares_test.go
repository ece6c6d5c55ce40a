package api_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher/api"
)

func TestSharesKeepRoomForOthers(t *testing.T) {
	t.Parallel()
	shares := api.NewShares(20, 10)
	take := func(who string, admin, want bool) (leave func()) {
		t.Helper()
		leave, ok := shares.Take(who, admin)
		if ok != want {
			t.Fatalf("%s: %v, want %v", who, ok, want)
		}
		return leave
	}
	var last func()
	for range 10 {
		last = take("ann", false, true)
	}
	take("ann", false, false)
	for range 8 {
		take("bob", false, true)
	}
	take("cid", false, false) // the last tenth is for admins
	take("eve", true, true)
	last()
	last() // once
	take("cid", false, false)
	take("eve", true, true)
	take("eve", true, true)
	take("eve", true, false)
}

func TestSharesAwaitRoom(t *testing.T) {
	t.Parallel()
	shares := api.NewShares(2, 1)
	leave, _ := shares.Take("ann", false)
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := shares.Await(short, "bob", false); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	got := make(chan error)
	go func() {
		_, err := shares.Await(t.Context(), "bob", false)
		got <- err
	}()
	leave()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// One token cannot take all streams and all lists of a replica.
func TestOneTokenHasAShareOfTheStreams(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	viewer, _ := b.call("POST", "/v1/tokens", adminToken, `{"name":"wall","role":"viewer"}`).must(201).fields()["token"].(string)
	open := func(token string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Accept", "text/event-stream")
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		return response.StatusCode
	}
	for n := range 11 {
		if got, want := open(viewer), map[bool]int{true: 200, false: 503}[n < 10]; got != want {
			t.Fatalf("stream %d of the viewer: %d, want %d", n+1, got, want)
		}
	}
	if got := open(adminToken); got != 200 {
		t.Errorf("the admin's stream: %d", got)
	}
}

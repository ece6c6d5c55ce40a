package operators_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

func newTestClient(t *testing.T, handler http.HandlerFunc) *operators.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := operators.New(operators.Config{URL: server.URL + "/", Token: "secret"})
	must.Succeed(t, err)
	return c
}

func TestOnlyAddressesOfServersAreTaken(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "x", "127.0.0.1:8080", "ftp://host", "http://", ":"} {
		if _, err := operators.New(operators.Config{URL: bad}); err == nil {
			t.Errorf("%q is taken for a URL", bad)
		}
	}
	if got := operators.Path("pools", "a/b c"); got != "/v1/pools/a%2Fb%20c" {
		t.Error(got)
	}
}

// The server asks a holder to give its slot back. The client must not return the lease as one that is held.
func TestALeaseThatIsToEndIsNotHeld(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"state":"held","lease":7,"token":9,"holder":"job","cancel":"cancelled"}`))
	})
	got, err := c.Leases.WaitForSlot(t.Context(), "p", operators.NewLease{Holder: "job"}, time.Minute, nil)
	if p, is := errors.AsType[*operators.Problem](err); !is || p.Code != "lease_lost" || p.Cancel != "cancelled" || got.State == operators.LeaseHeld {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestALeaseIsCountedFromItsRequest checks the end of a new and of a renewed lease. The end must be lease_ms + held_ms after the sending of
// the request, also if the response arrives late.
func TestALeaseIsCountedFromItsRequest(t *testing.T) {
	t.Parallel()
	const length = 60_000*time.Millisecond + 400*time.Millisecond
	received := make(chan time.Time, 1)
	c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
		received <- time.Now()
		_, _ = w.Write([]byte(`{"state":"held","lease":7,"token":9,"holder":"job","lease_ms":60000,"held_ms":400}`))
	})
	for name, ask := range map[string]func() (operators.Lease, error){
		"acquire": func() (operators.Lease, error) {
			return c.Leases.Acquire(t.Context(), "p", operators.NewLease{Holder: "job"}, time.Second)
		},
		"renew": func() (operators.Lease, error) {
			return c.Leases.Renew(t.Context(), "p", 7, operators.LeaseRenewal{Token: 9})
		},
	} {
		before := time.Now()
		got, err := ask()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if after := <-received; got.UsableUntil.Before(before.Add(length)) || got.UsableUntil.After(after.Add(length)) {
			t.Errorf("%s: ends %s after the server received the request, want at most %s", name, got.UsableUntil.Sub(after), length)
		}
	}
}

func TestListGoesThroughThePages(t *testing.T) {
	t.Parallel()
	const all = 2500
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Query().Get("page_size"))
		from, _ := strconv.Atoi(r.URL.Query().Get("page_token"))
		var page struct {
			Items []int  `json:"items"`
			Next  string `json:"next_page_token,omitempty"`
		}
		for i := from; i < min(from+size, all); i++ {
			page.Items = append(page.Items, i)
		}
		if from+size < all {
			page.Next = strconv.Itoa(from + size)
		}
		_ = json.NewEncoder(w).Encode(page)
	})
	for _, test := range []struct {
		limit, want int
		more        bool
	}{{0, all, false}, {1, 1, true}, {1000, 1000, true}, {1001, 1001, true}, {all - 1, all - 1, true}, {all, all, false}, {all + 1, all, false}} {
		entries, more := c.List(t.Context(), "/v1/items", nil, test.limit)
		n := 0
		for text, err := range entries {
			if err != nil || string(text) != strconv.Itoa(n) {
				t.Fatalf("limit %d: entry %d is %s, %v", test.limit, n, text, err)
			}
			n++
		}
		if n != test.want || *more != test.more {
			t.Errorf("limit %d: %d entries, more %t; want %d, %t", test.limit, n, *more, test.want, test.more)
		}
	}
}

// TestFiltersAreSent checks that each field of a filter is sent as the query parameter of its tag, and that fields without a value are left
// out.
func TestFiltersAreSent(t *testing.T) {
	t.Parallel()
	var got string
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		query.Del("page_size")
		got = query.Encode()
		_, _ = io.WriteString(w, `{"devices":[],"tasks":[]}`)
	})
	at := time.Date(2026, 11, 21, 15, 0, 0, 1, time.FixedZone("CET", 3600))
	devices := operators.DeviceFilter{Tags: []string{"a:1", "b:2"}, Noisy: "true", SilentMS: 7, Recent: 5, CreatedSince: at}
	for _, err := range c.Devices.List(t.Context(), devices) {
		t.Error(err)
	}
	if want := "created_since=2026-11-21T14%3A00%3A00.000000001Z&noisy=true&recent=5&silent_for_ms=7&tag=a%3A1&tag=b%3A2"; got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
	for want, filter := range map[string]operators.TaskFilter{
		"": {},
		"batch=3&error=x%2A&retrying=true&until=2026-11-21T14%3A00%3A00.000000001Z": {Batch: 3, Error: "x*", Retrying: true, Until: at},
	} {
		for _, err := range c.Tasks.List(t.Context(), filter) {
			t.Error(err)
		}
		if got != want {
			t.Errorf("sent %s, want %s", got, want)
		}
	}
	if got := (operators.ResultQuery{Fields: []string{"a", "b"}, Sample: 2}).Values().Encode(); got != "fields=a%2Cb&sample=2" {
		t.Error(got)
	}
}

// TestAListGoesOnBehindAnEmptyPage checks that a list ends only with a page that has no page token. An empty page
// does not end it, because a server may examine many entries without a match.
func TestAListGoesOnBehindAnEmptyPage(t *testing.T) {
	t.Parallel()
	pages := map[string]string{
		"":  `{"tasks":[],"next_page_token":"1"}`,
		"1": `{"tasks":[{"id":1}],"next_page_token":"2"}`,
		"2": `{"tasks":[],"next_page_token":"3"}`,
		"3": `{"tasks":[{"id":2}]}`,
	}
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(pages[r.URL.Query().Get("page_token")]))
	})
	var found []string
	entries, more := c.List(t.Context(), "/v1/tasks", nil, 0)
	for entry, err := range entries {
		must.Succeed(t, err)
		found = append(found, string(entry))
	}
	if got := strings.Join(found, " "); got != `{"id":1} {"id":2}` || *more {
		t.Errorf("found %s, more %v", got, *more)
	}
}

func TestRefusalSaysWhatTheServerSaid(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/known":
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"status":409,"code":"already_exists","detail":"the name already exists"}`)
		case "/v1/foreign":
			http.Error(w, "<html>", http.StatusTeapot)
		case "/v1/elsewhere":
			http.Redirect(w, r, "/v1/known", http.StatusFound)
		}
	})
	for path, want := range map[string]string{
		"/v1/known": "the name already exists (already_exists)", "/v1/foreign": "GET /v1/foreign: HTTP 418", "/v1/elsewhere": "HTTP 302",
	} {
		_, err := c.Get(t.Context(), path, nil)
		p, ok := errors.AsType[*operators.Problem](err)
		if !ok || !strings.Contains(p.Error(), want) || operators.IsTransient(err) || operators.IsResponseLost(err) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestOnlyWhatIsDoneOnceIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		request operators.Request
		times   int32 // how many times the client sends the request
	}{
		"reading":                {operators.Request{Method: http.MethodGet}, 3},
		"with a key":             {operators.Request{Method: http.MethodPost, Key: "k", Body: 1}, 3},
		"without a key":          {operators.Request{Method: http.MethodPost, Body: 1}, 1},
		"a body that comes once": {operators.Request{Method: http.MethodPost, Key: "k", NoRetry: true, OpenBody: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("1")), nil }}, 1},
		"deleting":               {operators.Request{Method: http.MethodDelete}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int32
			c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				switch sent.Add(1) {
				case 1:
					w.WriteHeader(http.StatusServiceUnavailable)
				case 2:
					panic(http.ErrAbortHandler)
				}
			})
			test.request.Path = "/v1/x"
			_, err := c.Call(t.Context(), test.request)
			if (err == nil) != (test.times == 3) || sent.Load() != test.times {
				t.Errorf("sent %d times, %v; want %d", sent.Load(), err, test.times)
			}
		})
	}
}

func TestWithoutAServerNothingIsTriedTwice(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(nil)
	server.Close()
	c, err := operators.New(operators.Config{URL: server.URL, OnRetry: func(error, time.Duration) { t.Error("tried again") }})
	must.Succeed(t, err)
	_, err = c.Get(t.Context(), "/v1/pools", nil)
	if lost, ok := errors.AsType[*operators.LostError](err); !ok || lost.Reached || !strings.Contains(err.Error(), server.URL) {
		t.Errorf("%v", err)
	}
	if err := c.Follow(t.Context(), "/v1/events", nil, operators.LivePosition{}, nil); err == nil {
		t.Error("nobody to follow, and no error")
	}
}

func TestPartOfAnExportIsAnError(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "device\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	var out bytes.Buffer
	err := c.Copy(t.Context(), operators.Request{Method: http.MethodGet, Path: "/v1/devices"}, &out)
	if !operators.IsResponseLost(err) || !strings.Contains(err.Error(), "the output is incomplete") || out.String() != "device\n" {
		t.Errorf("%v, %q", err, out.String())
	}
}

// The stream of events breaks in the middle of event 7. Follow must connect again and continue after event 6, the last complete one.
func TestFollowGoesOn(t *testing.T) {
	t.Parallel()
	var asked []string
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		last := r.Header.Get("Last-Event-ID")
		asked = append(asked, last) // one connection after the other
		w.Header().Set("Content-Type", "text/event-stream")
		switch last {
		case "":
			_, _ = fmt.Fprint(w, "retry: 3000\n\nid: 5\n\nid: 6\ndata: {\"id\":6}\n\nid: 7\ndata: {\"id\":")
		case "6":
			_, _ = fmt.Fprint(w, "id: 7\ndata: {\"id\":7}\n\n")
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	})
	var seen []string
	connected := 0
	err := c.Follow(t.Context(), "/v1/events", nil, operators.LivePosition{OnConnected: func() { connected++ }}, func(text json.RawMessage) error {
		seen = append(seen, string(text))
		return nil
	})
	if p, ok := errors.AsType[*operators.Problem](err); !ok || p.Status != http.StatusForbidden {
		t.Errorf("%v, want the refusal", err)
	}
	if got := strings.Join(seen, " "); got != `{"id":6} {"id":7}` || strings.Join(asked, ",") != ",6,7" || connected != 2 {
		t.Errorf("%s, asked from %q, connected %d times", got, asked, connected)
	}
}

// An error of the caller's function ends Follow, also if the error came from another request that may succeed later.
func TestFollowEndsWithTheErrorOfItsCaller(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "id: 6\ndata: {\"id\":6}\n\n") })
	calls, lost := 0, &operators.LostError{Err: io.EOF, Reached: true, ReadOnly: true}
	err := c.Follow(t.Context(), "/v1/events", nil, operators.LivePosition{}, func(json.RawMessage) error {
		if calls++; calls > 1 {
			return io.ErrUnexpectedEOF
		}
		return lost
	})
	if !errors.Is(err, lost) || calls != 1 {
		t.Errorf("%v after %d calls, want the error of the first call", err, calls)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "id: 5\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Follow(ctx, "/v1/events", nil, operators.LivePosition{OnConnected: cancel}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

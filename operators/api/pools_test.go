package api_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// expired creates an operator token that has expired.
func expired(b *bench) string {
	b.Helper()
	secret, past := credentials.NewToken(), time.Unix(1, 0)
	hash := credentials.HashToken(secret)
	if _, err := b.store.CreateToken(b.Context(), "test", store.Token{Role: "admin", ExpiresAt: &past}, hash[:]); err != nil {
		b.Fatal(err)
	}
	return secret
}

// settings returns the fields of a pool that an operator sets.
func settings(pool map[string]any) string {
	return fmt.Sprintf("%v %v %v %v %v", pool["capacity"], pool["lease_ms"], pool["paused"], pool["limits"], pool["windows"])
}

func TestPutPoolCreatesAndReplaces(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		for _, step := range []struct {
			body, want string
			status     int
			version    float64
		}{
			{`{"capacity":60}`, "60 300000 false [] []", 201, 1},
			{`{"capacity":7,"lease_ms":5000,"paused":true}`, "7 5000 true [] []", 200, 2},
			{`{"capacity":7,"lease_ms":5000,"paused":true,"limits":[],"windows":[]}`, "7 5000 true [] []", 200, 2},
			{`{"capacity":0}`, "0 300000 false [] []", 200, 3},
			{`{"capacity":60,"lease_ms":null,"paused":null,"limits":null,"windows":null}`, "60 300000 false [] []", 200, 4},
			{`{"capacity":10000,"lease_ms":86400000}`, "10000 8.64e+07 false [] []", 200, 5},
		} {
			put := b.call("PUT", "/v1/pools/ar:330100", adminToken, step.body).must(step.status).fields()
			if got := settings(put); got != step.want || put["version"] != step.version || put["name"] != "ar:330100" {
				b.Errorf("%s: %v, want %s version %v", step.body, put, step.want, step.version)
			}
			if diff := cmp.Diff(put, b.get("/v1/pools/ar%3A330100").must(200).fields()); diff != "" {
				b.Errorf("%s: GET differs from the answer of PUT: %s", step.body, diff)
			}
		}
	})
}

func TestPutPoolTakesWhatGetShows(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":3,"lease_ms":4000,"paused":true}`)
	shown := b.get("/v1/pools/p").must(200)
	put := b.call("PUT", "/v1/pools/p", adminToken, string(shown.body)).must(200)
	if diff := cmp.Diff(shown.fields(), put.fields()); diff != "" {
		t.Errorf("pasting a pool changed it: %s", diff)
	}
}

func badPools() []badBody {
	return []badBody{
		{`{}`, 422, "invalid_field", []string{"capacity"}},
		{`{"lease_ms":5000}`, 422, "invalid_field", []string{"capacity"}},
		{`{"capacity":null}`, 422, "invalid_field", []string{"capacity"}},
		{`{"capacity":""}`, 422, "invalid_field", []string{"capacity"}},
		{`{"capacity":-1}`, 422, "invalid_field", []string{"capacity", "0"}},
		{`{"capacity":10001}`, 422, "invalid_field", []string{"capacity", "10000"}},
		{`{"capacity":1.5}`, 422, "invalid_field", []string{"capacity", "integer"}},
		{`{"capacity":"60"}`, 422, "invalid_field", []string{"capacity", "integer"}},
		{`{"capacity":1e400}`, 400, "invalid_request", nil},
		{`{"paused":"yes"}`, 422, "invalid_field", []string{"paused", "boolean"}},
		{`{"capacity":60,"lease_ms":1999}`, 422, "invalid_field", []string{"lease_ms", "2000"}},
		{`{"lease_ms":-5}`, 422, "invalid_field", []string{"lease_ms"}},
		{`{"lease_ms":86400001}`, 422, "invalid_field", []string{"lease_ms", "86400000"}},
		{`{"capacities":1}`, 400, "unknown_field", []string{"capacities"}},
		{`{"capacities":1,"capacity":-1}`, 400, "unknown_field", []string{"capacities", "capacity"}},
		{`{"capacity":60,"limits":[{}]}`, 422, "invalid_field", []string{"limits"}},
		{`{"capacity":60,"windows":[{"cron":"0 1 * * *"}]}`, 422, "invalid_field", []string{"windows", "duration"}},
		{`[]`, 422, "invalid_field", nil},
		{`null`, 422, "invalid_field", nil},
		{`7`, 422, "invalid_field", nil},
		{`{`, 400, "invalid_request", nil},
		{`capacity=1`, 400, "invalid_request", nil},
		{``, 400, "invalid_request", nil},
		{"{\"name\":\"\xff\"}", 400, "invalid_request", []string{"UTF-8"}},
		{`{"name":"\u0000"}`, 400, "invalid_request", []string{"U+0000"}},
		{strings.Repeat("[", 100_000), 400, "invalid_request", nil},
		{`{"name":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "body_too_large", nil},
	}
}

func TestBadPoolsAreRefusedWhole(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("p", `{"capacity":5}`)
		b.refuses("PUT", "/v1/pools/p", badPools())
		if got := settings(b.get("/v1/pools/p").fields()); got != "5 300000 false [] []" {
			b.Errorf("a refused request changed the pool: %s", got)
		}
	})
}

func TestBadNamesOfPoolsAreRefused(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	for name, code := range map[string]string{
		"-p": "invalid_pool", "a%20b": "invalid_pool", "a%2Fb": "invalid_pool", "a%23b": "invalid_pool", "a+b": "invalid_pool", "%C3%BC": "invalid_pool",
		strings.Repeat("p", 65): "invalid_pool", "%FF": "invalid_path", "%00": "invalid_path", "..": "invalid_path", "%2e%2e": "invalid_path",
	} {
		b.call("PUT", "/v1/pools/"+name, adminToken, `{"capacity":60}`).problem(400, code)
		b.get("/v1/pools/"+name).problem(400, code)
		b.get("/v1/pools/"+name+"/slots").problem(400, code)
	}
	b.call("PUT", "/v1/pools/-p", adminToken, `{"capacity":60}`).problem(400, "invalid_pool").names(t, "letter or digit")
	b.call("PUT", "/v1/pools/"+strings.Repeat("p", 65), adminToken, `{"capacity":60}`).problem(400, "invalid_pool").names(t, "64")
	b.get("/v1/pools/q").problem(404, "not_found")
	b.get("/v1/pools/q/slots").problem(404, "not_found")
	if pools := list(b.get("/v1/pools").fields(), "pools"); len(pools) != 0 {
		t.Errorf("%d pools after refusals, want none", len(pools))
	}
}

func TestPutPoolAsksForJSON(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.postAs("PUT", "/v1/pools/p", "text/csv", `capacity`).problem(415, "unsupported_media_type").names(t, "text/csv")
	b.postAs("PUT", "/v1/pools/p", "application/json; charset=utf-8", `{"capacity":60}`).must(201)
	b.postAs("PUT", "/v1/pools/p", "", `{"capacity":60}`).must(200)
}

func TestPoolsArePaged(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		want := []string{"A", "B", "a", "a.1", "b"}
		for _, name := range []string{"b", "A", "a.1", "B", "a"} {
			b.pool(name, `{"capacity":60}`)
		}
		if diff := cmp.Diff(want, b.pages("/v1/pools", "pools", "name")); diff != "" {
			b.Errorf("pages: %s", diff)
		}
		b.badPages("/v1/pools")
	})
}

func TestChangedPoolIsKnownToRedisAtOnce(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		for _, capacity := range []int{3, 1, 5} {
			b.pool("p", fmt.Sprintf(`{"capacity":%d}`, capacity))
			snapshot, err := b.semaphore.Snapshot(b.Context(), "p")
			if err != nil || snapshot.Capacity != capacity {
				b.Errorf("Redis knows %+v (%v), want capacity %d", snapshot, err, capacity)
			}
		}
	})
}

func TestSlotsShowWhoIsInside(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("p", `{"capacity":4}`)
		b.batch(`{"pool":"p","devices":["d-1","d-2","d-3","d-4","d-5","d-6"]}`)
		grants := map[float64]grant{}
		for _, device := range []string{"d-1", "d-2", "d-3", "d-4"} { // they hold the slots 0 to 3
			g := b.granted(device)
			grants[float64(g.Slot)] = g
		}
		b.report("d-1", grants[0].result("succeeded", "")).must(200)
		b.report("d-3", grants[2].result("succeeded", "")).must(200)
		b.pool("p", `{"capacity":1}`) // slots 1 and 3 stay held, above the capacity
		shown := b.get("/v1/pools/p/slots").must(200).fields()
		want := map[string]any{"pool": "p", "capacity": 1.0, "held": 2.0, "reserved": 0.0, "waiting": 2.0}
		slots, oldest := list(shown, "slots"), shown["oldest_pending_at"]
		if batch := b.get("/v1/batches/1").must(200).fields(); oldest == nil || oldest != batch["created_at"] {
			b.Errorf("the oldest waits since %v, its batch was created %v", oldest, batch["created_at"])
		}
		// The list returns the same numbers. On a page with many pools it counts fewer waiting devices.
		for _, query := range []string{"", "?page_size=500"} {
			listed := object(list(b.get("/v1/pools"+query).must(200).fields(), "pools")[0])
			if listed["held"] != shown["held"] || listed["waiting"] != shown["waiting"] || listed["oldest_pending_at"] != oldest || listed["capacity"] != 1.0 {
				b.Errorf("listed as %v", listed)
			}
		}
		delete(shown, "slots")
		delete(shown, "oldest_pending_at")
		if diff := cmp.Diff(want, shown); diff != "" {
			b.Error(diff)
		}
		states := ""
		for _, s := range slots {
			slot := object(s)
			states += fmt.Sprintf("%v:%v ", slot["slot"], slot["state"])
			number, _ := slot["slot"].(float64)
			if g := grants[number]; slot["state"] == "held" && (slot["task"] != float64(g.ID) || slot["token"] != float64(g.Token) || slot["device"] == "" || slot["since"] == nil || slot["lease_until"] == nil) {
				b.Errorf("slot %v, want %+v", slot, g)
			}
		}
		if states != "0:free 1:held 3:held " {
			b.Errorf("slots %s", states)
		}
	})
}

// A reserved slot is shown at the lowest free number, with the device for which it is reserved.
func TestSlotsShowWhatIsKept(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("p", `{"capacity":3}`)
		b.batch(`{"pool":"p","devices":["d-1"]}`)
		b.granted("d-1") // holds slot 0
		seat := slots.Joiner{Waiter: slots.Waiter{Device: "d-2", Batch: 1, Task: 2, Weight: 1}, Reach: slots.ReachPush}
		pace := slots.Pace{Period: time.Minute, Offer: time.Minute}
		if line, err := b.semaphore.Join(b.Context(), "p", pace, []slots.Joiner{seat}); err != nil || line.Reserved != 1 {
			b.Fatalf("line %+v, %v", line, err)
		}
		shown := b.get("/v1/pools/p/slots").must(200).fields()
		states := ""
		for _, s := range list(shown, "slots") {
			slot := object(s)
			states += fmt.Sprintf("%v:%v:%v ", slot["slot"], slot["state"], slot["device"])
		}
		if states != "0:held:d-1 1:reserved:d-2 2:free:<nil> " || shown["reserved"] != 1.0 || shown["held"] != 1.0 {
			b.Errorf("slots %s of %v", states, shown)
		}
	})
}

// pagesOf is a small page size, so that short lists have several pages.
const pagesOf = 2

// pages reads all pages of a list and returns one field of all entries.
func (b *bench) pages(path, name, field string) []string {
	b.Helper()
	var all []string
	token := ""
	for range 100 {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		page := b.get(fmt.Sprintf("%s%spage_size=%d&page_token=%s", path, separator, pagesOf, url.QueryEscape(token))).must(200).fields()
		entries := list(page, name)
		if len(entries) > pagesOf {
			b.Fatalf("%s: a page of %d, want at most %d", path, len(entries), pagesOf)
		}
		for _, e := range entries {
			entry := object(e)
			all = append(all, fmt.Sprint(entry[field]))
		}
		if token, _ = page["next_page_token"].(string); token == "" {
			return all
		}
	}
	b.Fatal("the pages do not end")
	return nil
}

// badPages checks that invalid pages of a list are refused.
func (b *bench) badPages(path string) {
	b.Helper()
	for _, query := range []string{"page_size=0", "page_size=-1", "page_size=1001", "page_size=x", "page_token=%21", "page_token=AA", "page_token=_w"} {
		b.get(path+"?"+query).problem(422, "invalid_field").names(b.T, strings.Split(query, "=")[0])
	}
	b.get(path+"?page_token=%FF").problem(400, "invalid_request")
	b.get(path+"?page_token=%zz").problem(400, "invalid_request")
}

package api_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

func createExpiredToken(b *testAPI) string {
	b.Helper()
	secret, past := credentials.NewToken(), time.Unix(1, 0)
	hash := credentials.HashToken(secret)
	_, err := b.store.CreateToken(b.Context(), "test", store.Token{Role: "admin", ExpiresAt: &past}, hash[:])
	b.Must(err)
	return secret
}

// poolSettingsText returns, as text, the fields of a pool that an operator can set.
func poolSettingsText(pool map[string]any) string {
	return fmt.Sprintf("%v %v %v %v %v", pool["capacity"], pool["lease_ms"], pool["paused"], pool["limits"], pool["windows"])
}

func TestPutPoolCreatesAndReplaces(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
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
			put := b.Call("PUT", "/v1/pools/ar:330100", adminToken, step.body).Expect(step.status).Object()
			if got := poolSettingsText(put); got != step.want || put["version"] != step.version || put["name"] != "ar:330100" {
				b.Errorf("%s: %v, want %s version %v", step.body, put, step.want, step.version)
			}
			if diff := cmp.Diff(put, b.Get("/v1/pools/ar%3A330100").Expect(200).Object()); diff != "" {
				b.Errorf("%s: GET differs from the answer of PUT: %s", step.body, diff)
			}
		}
	})
}

func TestPutPoolTakesWhatGetShows(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":3,"lease_ms":4000,"paused":true}`)
	shown := b.Get("/v1/pools/p").Expect(200)
	put := b.Call("PUT", "/v1/pools/p", adminToken, string(shown.Body)).Expect(200)
	if diff := cmp.Diff(shown.Object(), put.Object()); diff != "" {
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
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":5}`)
		b.expectRefused("PUT", "/v1/pools/p", badPools())
		if got := poolSettingsText(b.Get("/v1/pools/p").Object()); got != "5 300000 false [] []" {
			b.Errorf("a refused request changed the pool: %s", got)
		}
	})
}

func TestBadNamesOfPoolsAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for name, code := range map[string]string{
		"-p": "invalid_pool", "a%20b": "invalid_pool", "a%2Fb": "invalid_pool", "a%23b": "invalid_pool", "a+b": "invalid_pool", "%C3%BC": "invalid_pool",
		strings.Repeat("p", 65): "invalid_pool", "%FF": "invalid_path", "%00": "invalid_path", "..": "invalid_path", "%2e%2e": "invalid_path",
	} {
		b.Call("PUT", "/v1/pools/"+name, adminToken, `{"capacity":60}`).ExpectProblem(400, code)
		b.Get("/v1/pools/"+name).ExpectProblem(400, code)
		b.Get("/v1/pools/"+name+"/slots").ExpectProblem(400, code)
	}
	b.Call("PUT", "/v1/pools/-p", adminToken, `{"capacity":60}`).ExpectProblem(400, "invalid_pool", "letter or digit")
	b.Call("PUT", "/v1/pools/"+strings.Repeat("p", 65), adminToken, `{"capacity":60}`).ExpectProblem(400, "invalid_pool", "64")
	b.Get("/v1/pools/q").ExpectProblem(404, "not_found")
	b.Get("/v1/pools/q/slots").ExpectProblem(404, "not_found")
	if pools := listField(b.Get("/v1/pools").Object(), "pools"); len(pools) != 0 {
		t.Errorf("%d pools after refusals, want none", len(pools))
	}
}

func TestPutPoolAsksForJSON(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.sendWithType("PUT", "/v1/pools/p", "text/csv", `capacity`).ExpectProblem(415, "unsupported_media_type", "text/csv")
	b.sendWithType("PUT", "/v1/pools/p", "application/json; charset=utf-8", `{"capacity":60}`).Expect(201)
	b.sendWithType("PUT", "/v1/pools/p", "", `{"capacity":60}`).Expect(200)
}

func TestPoolsArePaged(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		want := []string{"A", "B", "a", "a.1", "b"}
		for _, name := range []string{"b", "A", "a.1", "B", "a"} {
			b.PutPool(name, `{"capacity":60}`)
		}
		if diff := cmp.Diff(want, b.readPages("/v1/pools", "pools", "name")); diff != "" {
			b.Errorf("pages: %s", diff)
		}
		b.expectPageErrors("/v1/pools")
	})
}

func TestChangedPoolIsKnownToRedisAtOnce(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		for _, capacity := range []int{3, 1, 5} {
			b.PutPool("p", fmt.Sprintf(`{"capacity":%d}`, capacity))
			snapshot, err := b.Semaphore.Snapshot(b.Context(), "p")
			if err != nil || snapshot.Capacity != capacity {
				b.Errorf("Redis knows %+v (%v), want capacity %d", snapshot, err, capacity)
			}
		}
	})
}

func TestSlotsShowWhoIsInside(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":4}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1","d-2","d-3","d-4","d-5","d-6"]}`)
		grants := map[float64]rig.Grant{}
		for _, device := range []string{"d-1", "d-2", "d-3", "d-4"} { // they hold the slots 0 to 3
			g := b.ReportUntilGranted(device)
			grants[float64(g.Slot)] = g
		}
		b.SendReport("d-1", grants[0].Result("succeeded", "")).Expect(200)
		b.SendReport("d-3", grants[2].Result("succeeded", "")).Expect(200)
		b.PutPool("p", `{"capacity":1}`) // slots 1 and 3 stay held, above the capacity
		shown := b.Get("/v1/pools/p/slots").Expect(200).Object()
		want := map[string]any{"pool": "p", "capacity": 1.0, "held": 2.0, "reserved": 0.0, "waiting": 2.0}
		slots, oldest := listField(shown, "slots"), shown["oldest_pending_at"]
		if batch := b.Get("/v1/batches/1").Expect(200).Object(); oldest == nil || oldest != batch["created_at"] {
			b.Errorf("the oldest waits since %v, its batch was created %v", oldest, batch["created_at"])
		}
		// The list of pools returns the same numbers. On a page with many pools it counts fewer waiting devices.
		for _, query := range []string{"", "?page_size=500"} {
			listed := asObject(listField(b.Get("/v1/pools"+query).Expect(200).Object(), "pools")[0])
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
			slot := asObject(s)
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

// A slot is reserved for device d-2. The list of slots shows it at the lowest free number, with this device.
func TestSlotsShowWhatIsKept(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":3}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
		b.ReportUntilGranted("d-1") // device d-1 holds slot 0
		seat := slots.Joiner{Device: "d-2", Want: slots.Want{Batch: 1, Task: 2, Weight: 1}, Reach: slots.ReachPush}
		pace := slots.Pace{ReportPeriod: time.Minute, OfferTTL: time.Minute}
		if line, err := b.Semaphore.Join(b.Context(), "p", pace, []slots.Joiner{seat}); err != nil || line.Reserved != 1 {
			b.Fatalf("line %+v, %v", line, err)
		}
		shown := b.Get("/v1/pools/p/slots").Expect(200).Object()
		states := ""
		for _, s := range listField(shown, "slots") {
			slot := asObject(s)
			states += fmt.Sprintf("%v:%v:%v ", slot["slot"], slot["state"], slot["device"])
		}
		if states != "0:held:d-1 1:reserved:d-2 2:free:<nil> " || shown["reserved"] != 1.0 || shown["held"] != 1.0 {
			b.Errorf("slots %s of %v", states, shown)
		}
	})
}

// testPageSize is the page size of the tests. It is small, so that short lists have several pages.
const testPageSize = 2

// readPages reads all pages of a list and returns one field of each entry.
func (b *testAPI) readPages(path, name, field string) []string {
	b.Helper()
	var all []string
	token := ""
	for range 100 {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		page := b.Get(fmt.Sprintf("%s%spage_size=%d&page_token=%s", path, separator, testPageSize, url.QueryEscape(token))).Expect(200).Object()
		entries := listField(page, name)
		if len(entries) > testPageSize {
			b.Fatalf("%s: a page of %d, want at most %d", path, len(entries), testPageSize)
		}
		for _, e := range entries {
			entry := asObject(e)
			all = append(all, fmt.Sprint(entry[field]))
		}
		if token, _ = page["next_page_token"].(string); token == "" {
			return all
		}
	}
	b.Fatal("the pages do not end")
	return nil
}

// expectPageErrors requests invalid pages of a list and checks that they are refused.
func (b *testAPI) expectPageErrors(path string) {
	b.Helper()
	for _, query := range []string{"page_size=0", "page_size=-1", "page_size=1001", "page_size=x", "page_token=%21", "page_token=AA", "page_token=_w"} {
		b.Get(path+"?"+query).ExpectProblem(422, "invalid_field", strings.Split(query, "=")[0])
	}
	b.Get(path+"?page_token=%FF").ExpectProblem(400, "invalid_request")
	b.Get(path+"?page_token=%zz").ExpectProblem(400, "invalid_request")
}

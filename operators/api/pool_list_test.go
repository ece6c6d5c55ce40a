package api_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// listPoolNames reads all pages of a list of pools and returns the names of the pools.
func (b *testAPI) listPoolNames(query string, pageSize int) (names []string) {
	b.Helper()
	for token := ""; ; {
		page := b.Get(fmt.Sprintf("/v1/pools?page_size=%d&%s&page_token=%s", pageSize, query, url.QueryEscape(token))).Expect(200).Object()
		for _, p := range listField(page, "pools") {
			names = append(names, fmt.Sprint(asObject(p)["name"]))
		}
		next, more := page["next_page_token"].(string)
		if !more {
			return names
		}
		if token = next; len(names) > 100 {
			b.Fatalf("%s: no end: %v", query, names)
		}
	}
}

func TestPoolsAreFilteredAndSorted(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("berlin-1", `{"capacity":4}`)
		b.PutPool("berlin-2", `{"capacity":2}`)
		b.PutPool("Bern", `{"capacity":3}`)
		b.PutPool("empty", `{"capacity":9}`)
		b.PutPool("none", `{"capacity":0}`)
		queue := func(pool string, devices ...string) {
			b.CreateBatch(fmt.Sprintf(`{"pool":%q,"devices":["%s"]}`, pool, strings.Join(devices, `","`)))
		}
		queue("berlin-1", "a-1", "a-2", "a-3")
		queue("berlin-2", "b-1", "b-2", "b-3", "b-4", "b-5")
		queue("none", "c-1")
		for _, device := range []string{"a-1", "b-1", "b-2"} {
			b.ReportUntilGranted(device)
		}
		b.Call("PATCH", "/v1/pools/berlin-2", adminToken, `{"capacity":1}`).Expect(200)
		b.Call("POST", "/v1/pools/berlin-1/pause", adminToken, `{}`).Expect(200)
		for query, want := range map[string]string{
			"":                            "[Bern berlin-1 berlin-2 empty none]",
			"name=BER":                    "[Bern berlin-1 berlin-2]",
			"name=ber&sort=trouble":       "[berlin-2 berlin-1 Bern]",
			"sort=held":                   "[berlin-2 berlin-1 Bern empty none]",
			"sort=waiting":                "[berlin-2 berlin-1 none Bern empty]",
			"sort=trouble":                "[berlin-2 berlin-1 none Bern empty]",
			"only_trouble=true":           "[berlin-1 berlin-2 none]",
			"only_trouble=true&sort=held": "[berlin-2 berlin-1 none]",
			"name=nowhere":                "[]",
		} {
			for _, size := range []int{1, 2, 5} {
				if got := fmt.Sprint(b.listPoolNames(query, size)); got != want {
					b.Errorf("%q by %d: %s, want %s", query, size, got, want)
				}
			}
			if rows := b.getWithAccept("/v1/pools?"+query, csvType).Expect(200).CSVRows(); len(rows)-1 != len(strings.Fields(strings.Trim(want, "[]"))) {
				b.Errorf("%q: %d lines of CSV", query, len(rows))
			}
		}
		for pool, want := range map[string]string{"berlin-1": "2 [paused]", "berlin-2": "3 [over_capacity]", "none": "1 [no_slots]", "empty": "0 []"} {
			p := asObject(listField(b.Get("/v1/pools?name="+pool).Expect(200).Object(), "pools")[0])
			if got := fmt.Sprint(p["pending_tasks"], " ", p["trouble"]); got != want {
				b.Errorf("%s: %s, want %s", pool, got, want)
			}
		}
		totals := b.Get("/v1/totals").Expect(200).Object()
		if got := fmt.Sprint(totals["pools"], totals["capacity"], totals["held"], totals["pending_tasks"], totals["pools_in_trouble"]); got != "5 17 3 6 3" {
			b.Errorf("totals: %s: %v", got, totals)
		}
	})
}

func TestBadListsOfPoolsAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for i := range 3 {
		b.PutPool(fmt.Sprint("p-", i), `{"capacity":1}`)
	}
	for query, field := range map[string]string{
		"sort=size": "sort", "only_trouble=perhaps": "only_trouble", "name=a+b": "name", "name=" + strings.Repeat("x", 65): "name",
	} {
		b.Get("/v1/pools?"+query).ExpectProblem(422, "invalid_field", field)
	}
	token := fmt.Sprint(b.Get("/v1/pools?sort=held&page_size=1").Expect(200).Object()["next_page_token"])
	b.Get("/v1/pools?sort=held&page_token=" + token).Expect(200)
	for _, query := range []string{"sort=waiting&page_token=" + token, "sort=held&page_token=cC0w"} { // cC0w is p-0 in base64
		b.Get("/v1/pools?"+query).ExpectProblem(422, "invalid_field", "page_token")
	}
}

// TestDevicesThatWaitAreCountedByThePoolsOfAPage checks the limit up to which a list of pools counts the waiting
// devices of a pool. If the page has at most 100 pools, the limit must be that of the view of a single pool. If the
// page has more pools, the limit must be lower. The requested page size must not matter.
func TestDevicesThatWaitAreCountedByThePoolsOfAPage(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("a", `{"capacity":0}`)
		b.CreateBatch(`{"pool":"a","devices":["d-1","d-2","d-3","d-4","d-5","d-6","d-7","d-8","d-9","d-10","d-11","d-12"]}`)
		counts := func(query string, want float64) {
			b.Helper()
			var list struct{ Pools []map[string]any }
			if b.Get("/v1/pools?" + query).Expect(200).Decode(&list); list.Pools[0]["waiting"] != want {
				b.Errorf("%s: %v devices wait, want %v", query, list.Pools[0]["waiting"], want)
			}
		}
		for i := range 99 {
			b.PutPool(fmt.Sprintf("p-%d", i), `{"capacity":1}`)
		}
		counts("page_size=1000", 12)
		counts("page_size=1000&sort=waiting", 12)
		b.PutPool("q", `{"capacity":1}`)
		counts("page_size=1000", 10)
		counts("page_size=1000&sort=waiting", 10)
		counts("page_size=100", 12)
	})
}

package api_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

func (b *bench) history(query string) (list operators.HoldingList) {
	b.Helper()
	b.get("/v1/pools/p/history" + query).must(200).into(&list)
	return list
}

// The API returns who holds a slot, who held it before, and how each holding ended.
func TestHistoryOfASlot(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("p", `{"capacity":1}`)
		b.batch(`{"pool":"p","devices":["d-1","d-2","d-3"]}`)
		first := b.granted("d-1")
		b.report("d-1", first.result("failed", ``)).must(200)
		second := b.granted("d-2")
		b.call("POST", "/v1/pools/p/slots/0/release", adminToken, `{"reason":"it hangs","now":true}`).must(200)
		third := b.granted("d-3")
		all := b.history("?slot=0").History
		if len(all) != 3 {
			b.Fatalf("%+v", all)
		}
		for i, want := range []struct {
			g       grant
			device  string
			endedBy string
		}{{third, "d-3", ""}, {second, "d-2", "released"}, {first, "d-1", "failed"}} {
			if h := all[i]; h.Token != want.g.Token || h.Task != want.g.ID || h.Device != want.device || h.EndedBy != want.endedBy || (h.Ended == nil) != (want.endedBy == "") || h.Batch != 1 {
				b.Errorf("%d: %+v, want %+v", i, h, want)
			}
		}
		// The holding at a time is the first that ended after it.
		at := url.QueryEscape(all[2].Granted.Format(time.RFC3339Nano))
		if list := b.history("?slot=0&order=oldest&page_size=1&from=" + at); len(list.History) != 1 || list.History[0].Device != "d-1" || list.NextPageToken == "" {
			b.Errorf("at %s: %+v", at, list)
		}
		var devices []string
		for token := ""; ; {
			page := b.history("?page_size=1&page_token=" + token)
			for _, h := range page.History {
				devices = append(devices, h.Device)
			}
			if token = page.NextPageToken; token == "" {
				break
			}
		}
		if fmt.Sprint(devices) != "[d-3 d-2 d-1]" {
			b.Errorf("by page: %v", devices)
		}
		if n := b.accept("/v1/pools/p/history", csvType).must(200).entries(csvType); n != 3 {
			b.Errorf("%d rows of CSV", n)
		}
		if len(b.history("?slot=1-9999").History) != 0 || len(b.history("?to="+at).History) != 0 {
			b.Errorf("of nobody: %+v", b.history("?slot=1-9999"))
		}
	})
}

func TestMistakesInAHistoryNameTheirField(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":1}`)
	for query, want := range map[string]string{
		"?slot=x": "slot", "?slot=2-1": "slot", "?slot=-1": "slot", "?slot=0-10000": "9999", "?slot=1-": "slot", "?from=yesterday": "from", "?order=x": "order", "?page_token=x": "page_token",
		"?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z": "from: it has to be before to",
	} {
		if a := b.get("/v1/pools/p/history" + query).must(422); !strings.Contains(string(a.body), want) {
			b.Errorf("%s: %s", query, a.body)
		}
	}
	b.get("/v1/pools/p/series?range=2h").must(422)
	for _, path := range []string{"history", "series"} {
		b.get("/v1/pools/nowhere/" + path).must(404)
	}
}

// A series has the numbers of held slots and of grants, and agrees with the slots that are held now.
func TestSeriesOfAPool(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("p", `{"capacity":3}`)
		b.batch(`{"pool":"p","devices":["d-1","d-2","d-3"]}`)
		g := b.granted("d-1")
		b.report("d-1", g.result("succeeded", ``)).must(200)
		b.granted("d-2")
		b.granted("d-3")
		for span, step := range map[string]time.Duration{"1h": time.Minute, "24h": 10 * time.Minute, "7d": time.Hour} {
			var s operators.Series
			b.get("/v1/pools/p/series?range=" + span).must(200).into(&s)
			var granted, ended int64
			for i, p := range s.Points {
				granted += p.Granted
				ended += p.Ended
				if i > 0 && i < len(s.Points)-1 && p.At.Sub(s.Points[i-1].At.Time) != step {
					b.Errorf("%s: step %d: %v after %v", span, i, p.At, s.Points[i-1].At)
				}
			}
			last := s.Points[len(s.Points)-1]
			if granted != 3 || ended != 1 || last.Held != 2 || last.Capacity != 3 || !last.At.Equal(s.To.Time) || s.StepMS != step.Milliseconds() || s.From.After(s.To.Time) {
				b.Errorf("%s: %+v", span, s)
			}
		}
	})
}

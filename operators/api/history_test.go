package api_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators"
)

func (b *testAPI) readHistory(query string) (list operators.HoldingList) {
	b.Helper()
	b.Get("/v1/pools/p/history" + query).Expect(200).Decode(&list)
	return list
}

// The API returns the history of a slot: who holds it, who held it before, and how each holding ended.
func TestHistoryOfASlot(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":1}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1","d-2","d-3"]}`)
		first := b.ReportUntilGranted("d-1")
		b.SendReport("d-1", first.Result("failed", ``)).Expect(200)
		second := b.ReportUntilGranted("d-2")
		b.Call("POST", "/v1/pools/p/slots/0/release", adminToken, `{"reason":"it hangs","now":true}`).Expect(200)
		third := b.ReportUntilGranted("d-3")
		all := b.readHistory("?slot=0").History
		if len(all) != 3 {
			b.Fatalf("%+v", all)
		}
		for i, want := range []struct {
			g       rig.Grant
			device  string
			endedBy string
		}{{third, "d-3", ""}, {second, "d-2", "released"}, {first, "d-1", "failed"}} {
			if h := all[i]; h.Token != want.g.Token || h.Task != want.g.ID || h.Device != want.device || h.EndedBy != want.endedBy || (h.Ended == nil) != (want.endedBy == "") || h.Batch != 1 {
				b.Errorf("%d: %+v, want %+v", i, h, want)
			}
		}
		// The holding at a given time is the first one that ended after this time.
		at := url.QueryEscape(all[2].Granted.Format(time.RFC3339Nano))
		if list := b.readHistory("?slot=0&order=oldest&page_size=1&from=" + at); len(list.History) != 1 || list.History[0].Device != "d-1" || list.NextPageToken == "" {
			b.Errorf("at %s: %+v", at, list)
		}
		var devices []string
		for token := ""; ; {
			page := b.readHistory("?page_size=1&page_token=" + token)
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
		if n := countEntries(b.getWithAccept("/v1/pools/p/history", csvType).Expect(200), csvType); n != 3 {
			b.Errorf("%d rows of CSV", n)
		}
		if len(b.readHistory("?slot=1-9999").History) != 0 || len(b.readHistory("?to="+at).History) != 0 {
			b.Errorf("of nobody: %+v", b.readHistory("?slot=1-9999"))
		}
	})
}

func TestMistakesInAHistoryNameTheirField(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":1}`)
	for query, want := range map[string]string{
		"?slot=x": "slot", "?slot=2-1": "slot", "?slot=-1": "slot", "?slot=0-10000": "9999", "?slot=1-": "slot", "?from=yesterday": "from", "?order=x": "order", "?page_token=x": "page_token",
		"?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z": "to: must be later than from",
	} {
		if a := b.Get("/v1/pools/p/history" + query).Expect(422); !strings.Contains(string(a.Body), want) {
			b.Errorf("%s: %s", query, a.Body)
		}
	}
	b.Get("/v1/pools/p/series?range=2h").Expect(422)
	for _, path := range []string{"history", "series"} {
		b.Get("/v1/pools/nowhere/" + path).Expect(404)
	}
}

// The series of a pool has the numbers of held slots and of grants over time. Its end agrees with the slots that
// are held now.
func TestSeriesOfAPool(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":3}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1","d-2","d-3"]}`)
		g := b.ReportUntilGranted("d-1")
		b.SendReport("d-1", g.Result("succeeded", ``)).Expect(200)
		b.ReportUntilGranted("d-2")
		b.ReportUntilGranted("d-3")
		for span, step := range map[string]time.Duration{"1h": time.Minute, "24h": 10 * time.Minute, "7d": time.Hour} {
			var s operators.Series
			b.Get("/v1/pools/p/series?range=" + span).Expect(200).Decode(&s)
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

package api_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// TestReportsAboveTheRateAreRefused checks a device that reports too often over HTTP. Its reports must be refused before their bodies are
// read, and other devices must be served. Reports with a wrong token must not count for the device.
func TestReportsAboveTheRateAreRefused(t *testing.T) {
	t.Parallel()
	clock := time.Unix(1000, 0)
	b := startEmbedded(t, func(s *rig.Options) {
		s.Reports.Pace = pace.New(pace.Options{Rate: 1, Burst: 2, Now: func() time.Time { return clock }})
	})
	for range 5 {
		b.Call("POST", "/v1/devices/a/report", "a-wrong-token-of-nobody", `{}`).Expect(401)
	}
	for range 2 {
		b.SendReport("a", `{"id":"1"}`).Expect(200)
	}
	for range 3 {
		refused := b.SendReport("a", `not JSON`)
		p := refused.ExpectProblem(503, "busy_server")
		if p.ReportAfterMS == 0 || refused.Header.Get("Retry-After") == "" {
			t.Errorf("%+v, Retry-After %q", p, refused.Header.Get("Retry-After"))
		}
	}
	b.SendReport("b", `{"id":"1"}`).Expect(200)
	if text := b.Get("/metrics").Expect(200).Body; !bytes.Contains(text, []byte(`dispatcher_reports_total{reason="over_rate",transport="http"} 3`+"\n")) {
		t.Errorf("no 3 reports counted as over_rate in %s", text)
	}
}

func TestNoisyDevicesAreListed(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for i := range 3 {
		b.Call("POST", "/v1/devices", adminToken, fmt.Sprintf(`{"id":"d-%d"}`, i)).Expect(201)
	}
	_, err := b.store.RecordNoisy(b.Context(), "d-1", "rate=900/s limit=20/s via=mqtt")
	must.Succeed(t, err)
	for query, want := range map[string]string{"noisy=true": "d-1", "noisy=false": "d-0 d-2", "noisy=true&prefix=d-2": "", "noisy=true&part=1": "d-1"} {
		got := ""
		for _, d := range listField(b.Get("/v1/devices?"+query).Expect(200).Object(), "devices") {
			if got != "" {
				got += " "
			}
			got += fmt.Sprint(asObject(d)["id"])
		}
		if got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if d := b.Get("/v1/devices/d-1").Expect(200).Object(); d["noisy_at"] == nil {
		t.Errorf("%v has no noisy_at", d)
	}
	events := listField(b.Get("/v1/events?device=d-1&kind=device.noisy").Expect(200).Object(), "events")
	if len(events) != 1 || asObject(events[0])["detail"] != "rate=900/s limit=20/s via=mqtt" {
		t.Errorf("events %v", events)
	}
	b.Get("/v1/devices?recent=5&noisy=true").ExpectProblem(422, "invalid_field", "recent", "noisy")
}

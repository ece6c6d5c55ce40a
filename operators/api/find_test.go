package api_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// findHits searches for a text and returns the hits in one part of the result (such as devices), as kinds and ids.
func (b *testAPI) findHits(text, part string) string {
	b.Helper()
	found := asObject(b.Get("/v1/find?q=" + url.QueryEscape(text)).Expect(200).Object()[part])
	var all []string
	for _, h := range listField(found, "hits") {
		all = append(all, fmt.Sprint(asObject(h)["kind"], " ", asObject(h)["id"]))
	}
	if found["more"] == true {
		all = append(all, "...")
	}
	return strings.Join(all, ", ")
}

func TestEverythingIsFound(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("ar:330100", `{"capacity":20}`)
		b.PutPool("solar", `{"capacity":1}`)
		b.CreateBatch(`{"pool":"ar:330100","name":"Firmware 7.3","devices":["ar-7","ar-8"],"max_attempts":1}`)
		g := b.ReportUntilGranted("ar-7")
		b.SendReport("ar-7", g.Result("failed", `,"error":"no route to host"`)).Expect(200)
		b.Call("PATCH", "/v1/devices/ar-7", adminToken, `{"tags":{"site":"berlin","ar":"330100"}}`).Expect(200)
		for i := range 11 {
			b.Call("POST", "/v1/devices", adminToken, fmt.Sprintf(`{"id":"x-%02d-AR"}`, i)).Expect(201)
		}
		for _, c := range []struct{ text, part, want string }{
			{"AR", "pools", "pool ar:330100, pool solar"},
			{"solar", "exact", "pool solar"},
			{"solar", "pools", "pool solar"},
			{"firm", "batches", "batch 1"},
			{"ware 7", "batches", "batch 1"},
			{"nothing", "batches", ""},
			{"1", "exact", "task 1, batch 1"},
			{"2", "exact", "task 2"},
			{" 2 ", "exact", "task 2"},
			{"99", "exact", ""},
			{"ar-7", "exact", "device ar-7"},
			{"ar-", "devices", "device ar-7"},
			{"-7", "devices", "device ar-7"},
			{"x-0", "devices", "device x-00-AR, device x-01-AR, device x-02-AR, device x-03-AR, device x-04-AR, device x-05-AR, device x-06-AR, device x-07-AR, device x-08-AR, device x-09-AR"},
			{"-ar", "devices", "device x-00-AR, device x-01-AR, device x-02-AR, device x-03-AR, device x-04-AR, device x-05-AR, device x-06-AR, device x-07-AR, device x-08-AR, device x-09-AR, ..."},
			{"site:berlin", "tagged", "device ar-7"},
			{"ar:330100", "tagged", "device ar-7"},
			{"ar:330100", "exact", "pool ar:330100"},
			{"site:b", "tagged", ""},
			{"site", "tagged", ""},
			{"no route", "failed", "task 1"},
			{"route", "failed", ""},
			{"50%", "batches", ""},
		} {
			if got := b.findHits(c.text, c.part); got != c.want {
				b.Errorf("%q in %s: %s, want %s", c.text, c.part, got, c.want)
			}
		}
		for _, text := range []string{"", "   ", strings.Repeat("x", 201)} {
			b.Get("/v1/find?q="+url.QueryEscape(text)).ExpectProblem(422, "invalid_field", "q")
		}
		b.Get("/v1/find").ExpectProblem(422, "invalid_field", "q")
	})
}

// The results of a search link to lists with a filter. The lists must have these filters.
func TestListsTakePartsOfNames(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":1}`)
	for _, name := range []string{"nightly", "Nightly 2", "other"} {
		b.CreateBatch(fmt.Sprintf(`{"pool":"p","name":%q,"devices":["ar-1","router-AR-2"]}`, name))
	}
	b.SendReport("ar-1", `{"accept":false}`).Expect(200)
	b.SendReport("router-AR-2", `{"accept":false}`).Expect(200)
	for path, want := range map[string]int{
		"/v1/batches?name=NIGHT": 2, "/v1/batches?name=x": 0, "/v1/devices?part=ar-": 2, "/v1/devices?part=outer": 1, "/v1/devices?part=ar-&prefix=r": 1,
	} {
		noun, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "?")
		if got := len(listField(b.Get(path).Expect(200).Object(), noun)); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
		if rows := b.getWithAccept(path+"&page_size=1", csvType).Expect(200).CSVRows(); len(rows)-1 != want {
			t.Errorf("%s: %d lines of CSV", path, len(rows))
		}
	}
	first := b.Get("/v1/batches?name=night&page_size=1").Expect(200).Object()
	second := b.Get("/v1/batches?name=night&page_size=1&page_token=" + fmt.Sprint(first["next_page_token"])).Expect(200).Object()
	if len(listField(first, "batches")) != 1 || len(listField(second, "batches")) != 1 {
		t.Errorf("pages of one batch: %v, %v", first, second)
	}
	b.Get("/v1/devices?part=a&silent_for_ms=1").ExpectProblem(422, "invalid_field", "part", "silent_for_ms")
	b.Get("/v1/devices?part=a+b").ExpectProblem(422, "invalid_field", "part")
	b.Get("/v1/devices?recent=5&part=a").ExpectProblem(422, "invalid_field", "recent", "part")
}

// A search did not read all devices. The response says so, and the list of devices continues where the search
// ended.
func TestASearchSaysHowFarItLooked(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *rig.Options) { s.API.Store = twoDeviceStore{s.API.Store} })
	for i := range 7 {
		b.createDevice(fmt.Sprintf("m-%d-x", i))
	}
	found := asObject(b.Get("/v1/find?q=6-x").Expect(200).Object()["devices"])
	if len(listField(found, "hits")) != 0 || found["looked_at"] != 50_000.0 {
		t.Errorf("beyond the first: %v", found)
	}
	if found = asObject(b.Get("/v1/find?q=m-6").Expect(200).Object()["devices"]); len(listField(found, "hits")) != 1 {
		t.Errorf("the beginning of an id, however far: %v", found)
	}
	path, pages := "/v1/devices?part=6-X", 0
	for token := ""; ; pages++ {
		page := b.Get(path + token).Expect(200).Object()
		if hits := listField(page, "devices"); len(hits) == 1 {
			break
		}
		next, more := page["next_page_token"].(string)
		if token = "&page_token=" + next; !more {
			t.Fatalf("not found on %d pages", pages)
		}
	}
	if pages != 3 {
		t.Errorf("found behind %d pages of two that were looked at, want 3", pages)
	}
}

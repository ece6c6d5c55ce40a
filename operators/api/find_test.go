package api_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// hits returns one part of a search result, as kinds and ids.
func (b *bench) hits(text, part string) string {
	b.Helper()
	found := object(b.get("/v1/find?q=" + url.QueryEscape(text)).must(200).fields()[part])
	var all []string
	for _, h := range list(found, "hits") {
		all = append(all, fmt.Sprint(object(h)["kind"], " ", object(h)["id"]))
	}
	if found["more"] == true {
		all = append(all, "...")
	}
	return strings.Join(all, ", ")
}

func TestEverythingIsFound(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("ar:330100", `{"capacity":20}`)
		b.pool("solar", `{"capacity":1}`)
		b.batch(`{"pool":"ar:330100","name":"Firmware 7.3","devices":["ar-7","ar-8"],"max_attempts":1}`)
		g := b.granted("ar-7")
		b.report("ar-7", g.result("failed", `,"error":"no route to host"`)).must(200)
		b.call("PATCH", "/v1/devices/ar-7", adminToken, `{"tags":{"site":"berlin","ar":"330100"}}`).must(200)
		for i := range 11 {
			b.call("POST", "/v1/devices", adminToken, fmt.Sprintf(`{"id":"x-%02d-AR"}`, i)).must(201)
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
			if got := b.hits(c.text, c.part); got != c.want {
				b.Errorf("%q in %s: %s, want %s", c.text, c.part, got, c.want)
			}
		}
		for _, text := range []string{"", "   ", strings.Repeat("x", 201)} {
			b.get("/v1/find?q="+url.QueryEscape(text)).problem(422, "invalid_field").names(t, "q")
		}
		b.get("/v1/find").problem(422, "invalid_field").names(t, "q")
	})
}

// The lists have the filters to which the results of a search link.
func TestListsTakePartsOfNames(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":1}`)
	for _, name := range []string{"nightly", "Nightly 2", "other"} {
		b.batch(fmt.Sprintf(`{"pool":"p","name":%q,"devices":["ar-1","router-AR-2"]}`, name))
	}
	b.report("ar-1", `{"accept":false}`).must(200)
	b.report("router-AR-2", `{"accept":false}`).must(200)
	for path, want := range map[string]int{
		"/v1/batches?name=NIGHT": 2, "/v1/batches?name=x": 0, "/v1/devices?part=ar-": 2, "/v1/devices?part=outer": 1, "/v1/devices?part=ar-&prefix=r": 1,
	} {
		noun, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "?")
		if got := len(list(b.get(path).must(200).fields(), noun)); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
		if rows := b.accept(path+"&page_size=1", csvType).must(200).table(); len(rows)-1 != want {
			t.Errorf("%s: %d lines of CSV", path, len(rows))
		}
	}
	first := b.get("/v1/batches?name=night&page_size=1").must(200).fields()
	second := b.get("/v1/batches?name=night&page_size=1&page_token=" + fmt.Sprint(first["next_page_token"])).must(200).fields()
	if len(list(first, "batches")) != 1 || len(list(second, "batches")) != 1 {
		t.Errorf("pages of one batch: %v, %v", first, second)
	}
	b.get("/v1/devices?part=a&silent_for_ms=1").problem(422, "invalid_field").names(t, "part", "silent_for_ms")
	b.get("/v1/devices?part=a+b").problem(422, "invalid_field").names(t, "part")
	b.get("/v1/devices?recent=5&part=a").problem(422, "invalid_field").names(t, "recent", "part")
}

// A search that did not read all devices reports this, and the list continues where the search ended.
func TestASearchSaysHowFarItLooked(t *testing.T) {
	t.Parallel()
	b := embedded(t, func(s *setup) { s.api.Store = nearSighted{s.api.Store} })
	for i := range 7 {
		b.device(fmt.Sprintf("m-%d-x", i))
	}
	found := object(b.get("/v1/find?q=6-x").must(200).fields()["devices"])
	if len(list(found, "hits")) != 0 || found["looked_at"] != 50_000.0 {
		t.Errorf("beyond the first: %v", found)
	}
	if found = object(b.get("/v1/find?q=m-6").must(200).fields()["devices"]); len(list(found, "hits")) != 1 {
		t.Errorf("the beginning of an id, however far: %v", found)
	}
	path, pages := "/v1/devices?part=6-X", 0
	for token := ""; ; pages++ {
		page := b.get(path + token).must(200).fields()
		if hits := list(page, "devices"); len(hits) == 1 {
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

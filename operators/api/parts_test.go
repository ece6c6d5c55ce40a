package api_test

import (
	"fmt"
	"strings"
	"testing"
)

// A list has large entries. Its pages end early, and all pages together contain each entry once.
func TestPagesOfLargeEntriesEndSooner(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":1}`)
	const tasks = 150
	var lines strings.Builder
	for n := range tasks {
		fmt.Fprintf(&lines, `{"device":"d-%d","payload":"%s"}`+"\n", n, strings.Repeat("x", 30<<10))
	}
	b.sendWithType("POST", "/v1/batches?pool=p", ndjsonType, lines.String()).Expect(201)
	pages, seen := 0, 0
	for token := ""; pages == 0 || token != ""; pages++ {
		a := b.Get("/v1/tasks?page_size=1000&page_token=" + token).Expect(200)
		if len(a.Body) > 3<<20 {
			t.Errorf("a page of %d bytes", len(a.Body))
		}
		for _, task := range listField(a.Object(), "tasks") {
			if seen++; asObject(task)["id"] != float64(seen) {
				t.Fatalf("entry %d: %v", seen, asObject(task)["id"])
			}
		}
		token, _ = a.Object()["next_page_token"].(string)
	}
	if seen != tasks || pages < 3 {
		t.Errorf("%d tasks on %d pages", seen, pages)
	}
}

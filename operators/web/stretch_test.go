package web_test

import (
	"html"
	"regexp"
	"strings"
	"testing"
)

// TestListsGoOnWhereNothingMatchesSoFar checks a filtered list whose first page has no match because the search is not finished: the page
// links to the following page, which may have matches.
func TestListsGoOnWhereNothingMatchesSoFar(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	b.createPool("p", 1, "d-1")
	for _, query := range []string{
		`INSERT INTO tasks (batch, pool, device, state, error) SELECT 1, 'p', 'd-1', 'failed', CASE n WHEN 60000 THEN 'rare' ELSE '' END FROM generate_series(2, 60000) n`,
		`INSERT INTO events (at, kind, device) SELECT now(), CASE n WHEN 1 THEN 'task.rare' ELSE 'task.usual' END, 'd-1' FROM generate_series(1, 60000) n`,
	} {
		b.alterLedger(query)
	}
	for path, want := range map[string]string{"/tasks?error=rare": `/tasks/60000"`, "/activity?kind=task.rare": `id="event-`} {
		_, first, _ := b.getPage(path)
		next := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(first)
		if next == nil || !strings.Contains(first, "None match so far") || strings.Contains(first, want) {
			t.Errorf("%s: the first page does not lead on: %v", path, next)
			continue
		}
		if _, second, _ := b.getPage(html.UnescapeString(next[1])); !strings.Contains(second, want) {
			t.Errorf("%s: nothing on the page behind it, %s", path, next[1])
		}
	}
}

package web_test

import (
	"os"
	"strings"
	"testing"
)

// TestPicturesOfARunningOne takes pictures of the screens of a dispatcher that
// asks nobody to sign in:
//
//	dispatcher dev --simulate 500
//	WEB_URL=http://127.0.0.1:8080 WEB_SHOTS=/tmp/shots go test ./dispatcher/web -run 'TestPicturesOfARunningOne$'
func TestPicturesOfARunningOne(t *testing.T) {
	t.Parallel()
	url := os.Getenv("WEB_URL")
	if url == "" {
		t.Skip("runs with WEB_URL in the environment")
	}
	tab := browse(t)
	follow := func(name, from, selector string) string {
		tab.open(url + from)
		path := ask[string](tab, `(document.querySelector(`+"`"+selector+"`"+`) || {getAttribute: () => ""}).getAttribute("href")`)
		if path == "" {
			t.Logf("%s: nothing to show", name)
		}
		return path
	}
	pages := map[string]string{
		"pools": "/", "batches": "/batches", "batch-new": "/new-batch", "tasks": "/tasks", "tasks-failed": "/tasks?state=failed", "devices": "/devices",
		"devices-recent": "/devices?show=recent", "devices-silent": "/devices?show=silent", "activity": "/activity", "system": "/system", "pool-new": "/new-pool",
		"pool":    follow("pool", "/", ".card h2 a"),
		"paused":  follow("paused", "/", ".card:has(.tag.warn) h2 a"),
		"batch":   follow("batch", "/batches", "#batch-list tbody tr:last-child a"),
		"running": follow("running", "/tasks?state=dispatched", "#task-list tbody a"),
		"waiting": follow("waiting", "/tasks?state=pending", "#task-list tbody tr:last-child a"),
		"failed":  follow("failed", "/tasks?state=failed", "#task-list tbody a"),
		"device":  follow("device", "/tasks?state=failed", `#task-list tbody a[href^="/devices/"]`),
		"release": follow("release", follow("pool", "/", ".card h2 a"), "#holders a.danger"),
	}
	for name, path := range pages {
		if path == "" {
			continue
		}
		tab.open(url + path)
		tab.until(`document.querySelector("h1").textContent !== ""`)
		if live := ask[bool](tab, `document.body.dataset.live !== undefined`); live {
			tab.until(`document.getElementById("pulse").textContent === "live"`)
		}
		tab.shoot(name)
	}
	tab.forgive("ERR_")
	t.Log(strings.TrimSpace(tab.shots()))
}

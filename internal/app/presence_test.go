package app

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestReplicasKnowOneAnother checks the list of replicas in the dashboard: each replica shows all replicas,
// including one without a dashboard. A replica that was stopped leaves the list.
func TestReplicasKnowOneAnother(t *testing.T) {
	t.Parallel()
	dsn, redis := sharedPostgres.NewLedger(t), servers.StartRedis(t)
	one, a := startServing(t, serveConfig(t, dsn, redis.URL()))
	two, b := startServing(t, serveConfig(t, dsn, redis.URL(), "DISPATCHER_WEB=off"))
	cookie := signIn(t, one)
	shows := func(which *App) bool {
		text := getPage(t, one.url+"/system", cookie)
		_, after, found := strings.Cut(text, fmt.Sprintf(`id="replica-%s"`, which.presence.id))
		row, _, _ := strings.Cut(after, "</tr>")
		return found && strings.Contains(row, which.Addr()) && strings.Contains(row, "✓ ok") && !strings.Contains(row, "none yet")
	}
	await.True(t, "both replicas, with a pass of the reaper each", func() bool { return shows(a) && shows(b) })
	must.Succeed(t, two.stop())
	if text := getPage(t, one.url+"/system", cookie); strings.Contains(text, b.presence.id) {
		t.Error("a replica that was stopped is still there")
	}
}

// signIn signs in as the admin and returns the session cookie.
func signIn(t *testing.T, i *instance) *http.Cookie {
	t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Post(i.url+"/sign-in", "application/x-www-form-urlencoded", strings.NewReader("token="+i.admin))
	must.Succeed(t, err)
	defer response.Body.Close()
	if len(response.Cookies()) != 1 {
		t.Fatalf("sign-in: %s", response.Status)
	}
	return response.Cookies()[0]
}

func getPage(t *testing.T, url string, cookie *http.Cookie) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must.Succeed(t, err)
	r.AddCookie(cookie)
	response, err := http.DefaultClient.Do(r)
	must.Succeed(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must.Succeed(t, err)
	return string(text)
}

package app

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestDDITranscripts plays the transcripts in testdata/ddi. They contain the requests of clients that no other test runs, in the order in
// which these clients send them. The transcripts were written from the contract of DDI and from the source of the clients.
func TestDDITranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/ddi/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d transcripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			must.Succeed(t, err)
			i, _ := startDev(t, t.TempDir())
			i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":1,"lease_ms":60000}`)
			newDDIDevice(t, i, "rauc").play(file, strings.Split(string(text), "\n"))
		})
	}
}

// play sends the requests of a transcript and checks the answers. It repeats a GET until the answer is the expected one, because a slot or
// a cancel reaches the device with a delay.
func (d *ddiDevice) play(file string, lines []string) {
	d.Helper()
	for n, line := range lines {
		method, rest, _ := strings.Cut(strings.TrimLeft(line, "!>=< "), " ")
		resource, body, _ := strings.Cut(rest, " ")
		where := fmt.Sprintf("%s:%d: %s %s", file, n+1, method, resource)
		switch {
		case strings.HasPrefix(line, "!"):
			answer := d.callOperator(d.T, method, resource, strings.Replace(body, "DEPLOYMENT", deploymentPayload, 1))
			if method == "GET" && strings.Contains(string(answer), `:[]`) {
				d.Errorf("%s: %s", where, answer)
			}
		case strings.HasPrefix(line, "="):
			want := strings.TrimPrefix(line, "= ")
			await.True(d.T, where+want, func() bool {
				return strings.Contains(string(d.callOperator(d.T, "GET", "/v1/tasks?page_size=1&device="+d.id, "")), want)
			})
		case strings.HasPrefix(line, ">"):
			d.exchange(where, method, strings.TrimPrefix(resource, "/"), body, strings.TrimPrefix(lines[n+1], "< "))
		}
	}
}

// exchange sends one request until the answer equals want. Only a GET is repeated. In want, "*" stands for any text.
func (d *ddiDevice) exchange(where, method, resource, body, want string) {
	d.Helper()
	pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(want), `\*`, `.*`) + "$")
	var got string
	defer func() {
		if !pattern.MatchString(got) {
			d.Errorf("%s:\n got %s\nwant %s", where, got, want)
		}
	}()
	await.True(d.T, where, func() bool {
		status, content := d.send(method, resource, body)
		got = strings.TrimSpace(fmt.Sprint(status, " ", content))
		return method != "GET" || pattern.MatchString(got)
	})
}

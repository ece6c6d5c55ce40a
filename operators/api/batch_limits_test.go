package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators/api"
)

// TestLimitsAreThoseOfThePage checks that the default limits of batches are the ones in docs/protocol.md. The other
// tests use smaller limits.
func TestLimitsAreThoseOfThePage(t *testing.T) {
	t.Parallel()
	l := api.DefaultBodyLimits()
	bytes, tasks, pause := fmt.Sprintf("a streamed body %d GiB,", l.MaxStreamBytes>>30), fmt.Sprintf("a batch %d,000,000 tasks,", l.MaxTasks/1_000_000), fmt.Sprintf("%v s without a byte", l.MaxPause.Seconds())
	for _, says := range []string{bytes, tasks, pause} {
		if !strings.Contains(readProtocolPage(t), says) {
			t.Errorf("the page does not say %q", says)
		}
	}
	if l.MaxStreamBytes%(1<<30) != 0 || l.MaxTasks%1_000_000 != 0 {
		t.Errorf("%+v: not round", l)
	}
}

// startWithBatchLimits starts the API with small limits: a batch has at most 3 tasks, and a streamed batch at most
// 1 KiB.
func startWithBatchLimits(t *testing.T, pause time.Duration) *testAPI {
	t.Helper()
	b := startEmbedded(t, func(s *rig.Options) {
		s.API.Limits = api.BodyLimits{MaxStreamBytes: 1 << 10, MaxTasks: 3, MaxPause: pause}
	})
	b.PutPool("p", `{"capacity":60}`)
	return b
}

func TestBatchesHaveAMostOfTasksAndBytes(t *testing.T) {
	t.Parallel()
	b := startWithBatchLimits(t, patience)
	post := func(query, form, body string) rig.Response {
		return b.sendWithType("POST", "/v1/batches"+query, form, body)
	}
	blank := strings.Repeat(" ", 70<<10) // makes the body a long one
	for _, test := range []struct{ query, form, three, four, at string }{
		{"?pool=p", csvType, "device\na\nb\nc\n", "device\na\nb\nc\nd\n", "line 5"},
		{"?pool=p", ndjsonType, strings.Repeat("{\"device\":\"a\"}\n", 3), strings.Repeat("{\"device\":\"a\"}\n", 4), "line 4"},
		{"", "application/json", `{"pool":"p","devices":["a","b","c"]}`, `{"pool":"p","devices":["a","b","c","d"]}`, "devices[3]"},
		{"", "application/json", `{"pool":"p","devices":["a","b","c"]` + blank + `}`, `{"pool":"p","devices":["a","b","c","d"]` + blank + `}`, "devices[3]"},
	} {
		post(test.query, test.form, test.three).Expect(http.StatusCreated)
		a := post(test.query, test.form, test.four)
		if a.Status != http.StatusUnprocessableEntity || !strings.Contains(string(a.Body), test.at+": at most 3 tasks in a batch") {
			t.Errorf("%s: %d %s", test.form, a.Status, a.Body)
		}
	}
	post("?pool=p", ndjsonType, `{"device":"a"}`+strings.Repeat("\n", 1<<10-14)).Expect(http.StatusCreated)
	post("?pool=p", ndjsonType, `{"device":"a"}`+strings.Repeat("\n", 1<<10-13)).ExpectProblem(http.StatusRequestEntityTooLarge, "body_too_large", "1024")
	post("", "application/json", strings.Repeat(" ", 64<<20+1)).ExpectProblem(http.StatusRequestEntityTooLarge, "body_too_large")
	b.sendWithType("POST", "/v1/devices", ndjsonType, strings.Repeat("\n", 16<<20+1)).ExpectProblem(http.StatusRequestEntityTooLarge, "body_too_large")
}

// A client pauses too long while it sends a long body. It gets an error, and its connection ends.
func TestASilentSenderOfALongBodyIsLeft(t *testing.T) {
	t.Parallel()
	b := startWithBatchLimits(t, 50*time.Millisecond)
	for _, test := range []struct{ path, form string }{
		{"/v1/batches?pool=p", csvType}, {"/v1/batches", "application/json"}, {"/v1/devices", csvType},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.URL, "http://"))
		b.Must(err)
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: 900\r\n\r\ndevice\n", test.path, adminToken, test.form)
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		from := bufio.NewReader(conn)
		response, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatalf("%s: %v", test.form, err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusRequestTimeout {
			t.Errorf("%s, %s: %s", test.path, test.form, response.Status)
		}
		if _, err := io.Copy(io.Discard, from); err != nil {
			t.Errorf("%s, %s: the connection goes on: %v", test.path, test.form, err)
		}
	}
}

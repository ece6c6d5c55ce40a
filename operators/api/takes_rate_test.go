package api_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// takeClient is a program that sends takes over one connection that it keeps open.
type takeClient struct {
	conn        net.Conn
	in          *bufio.Reader
	requestHead string
}

func (b *testAPI) newTakeClient(token string) *takeClient {
	b.Helper()
	address := strings.TrimPrefix(b.URL, "http://")
	conn, err := net.Dial("tcp", address)
	b.Must(err)
	b.Cleanup(func() { _ = conn.Close() })
	head := "POST /v1/limits/sms/take HTTP/1.1\r\nHost: " + address + "\r\nAuthorization: Bearer " + token + "\r\nContent-Type: application/json\r\n"
	return &takeClient{conn, bufio.NewReader(conn), head}
}

func (t *takeClient) sendTake(body string) error {
	if _, err := io.WriteString(t.conn, fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", t.requestHead, len(body), body)); err != nil {
		return err
	}
	answer, err := http.ReadResponse(t.in, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d: %s", answer.StatusCode, text)
	}
	return err
}

// cpuTime returns the CPU time that this process and its Redis have used so far.
func (b *testAPI) cpuTime() time.Duration {
	b.Helper()
	var own syscall.Rusage
	b.Must(syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	used := time.Duration(own.Utime.Nano() + own.Stime.Nano())
	info, err := b.Redis.InfoMap(b.Context(), "cpu").Result()
	b.Must(err)
	for _, kind := range []string{"used_cpu_user", "used_cpu_sys"} {
		var seconds float64
		_, err := fmt.Sscan(info["CPU"][kind], &seconds)
		b.Must(err)
		used += time.Duration(seconds * float64(time.Second))
	}
	return used
}

// TestTakesASecond measures how many takes (requests to a limit set) are answered per second over HTTP. The client,
// the server and Redis run on this machine:
//
//	TAKES=1 go test ./operators/api -run 'TestTakesASecond$' -v
//
// On a busy machine, the CPU time of a take shows what an idle machine could do.
func TestTakesASecond(t *testing.T) { //nolint:paralleltest // it measures
	if os.Getenv("TAKES") == "" {
		t.Skip("a measurement: set TAKES=1")
	}
	const connections, takes = 32, 60_000
	b := startOnServers(t)
	b.putLimitSet("sms", `{"limits":[{"name":"per-phone","per":"facts.phone","algorithm":"sliding","windows":[{"max":20,"per_ms":60000}]}]}`)
	if err := b.Dispatcher.Devices.DropChangedTokens(t.Context()); err != nil { // as the periodic pass does
		t.Fatal(err)
	}
	caller := b.createCallerToken(`"limit_sets":["*"]`)
	body := func(n int64) string { return fmt.Sprintf(`{"facts":{"phone":"+49 %d","user":"ann"}}`, n%10_000) }
	alone := make([]time.Duration, 2000)
	one := b.newTakeClient(caller)
	for i := range alone {
		started := time.Now()
		b.Must(one.sendTake(body(int64(i))))
		alone[i] = time.Since(started)
	}
	slices.SortFunc(alone, cmp.Compare[time.Duration])
	var all sync.WaitGroup
	var next atomic.Int64
	all.Go(func() { // tokens are trusted only for seconds after a reading
		pass := time.NewTicker(time.Second)
		defer pass.Stop()
		for next.Load() < takes {
			_ = b.Dispatcher.Devices.DropChangedTokens(t.Context())
			<-pass.C
		}
	})
	before, started := b.cpuTime(), time.Now()
	for range connections {
		one := b.newTakeClient(caller)
		all.Go(func() {
			for n := next.Add(1); n <= takes; n = next.Add(1) {
				if err := one.sendTake(body(n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	took, used := time.Since(started), b.cpuTime()-before
	t.Logf("%.0f takes/s on %d connections; %s of processors for each, so at most %.0f/s on two; alone p50 %s, p99 %s",
		takes/took.Seconds(), connections, used/takes, 2/(used/takes).Seconds(), alone[len(alone)/2], alone[len(alone)*99/100])
}

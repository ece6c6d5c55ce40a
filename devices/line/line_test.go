// Package line_test shows a complete transport for devices in a few lines: text lines over TCP. The dispatcher
// makes the decisions.
package line_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// lineTransport answers the lines that a device sends: first "HELLO device token", then "ASK" or "DONE task token".
type lineTransport struct {
	devices.Handler
	sessions sync.Map // from devices.ID to net.Conn
}

// Wake sends a wake line to the device if its connection is open at this transport.
func (tr *lineTransport) Wake(device devices.ID, hold time.Duration) {
	session, _ := tr.sessions.Load(device)
	if conn, ok := session.(net.Conn); ok {
		_, _ = fmt.Fprintln(conn, "WAKE", hold.Milliseconds())
	}
}

func (tr *lineTransport) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	var device devices.ID // the device of the connection. It is empty before the first accepted HELLO.
	for in := bufio.NewScanner(conn); in.Scan(); {
		started := time.Now()
		reply, err := tr.handleLine(ctx, conn, &device, in.Text())
		words := replyWords(reply)
		if err != nil {
			r := devices.RefusalOf(err)
			reply, words = r.Reply("", tr.DelayAfterRefusal(r.DelayAs)), []any{"REFUSED", r.Code, r.MayResend}
		}
		tr.CountReport("line", string(reply.Reason), time.Since(started))
		_, _ = fmt.Fprintln(conn, append(words, reply.ReportAfterMS)...)
	}
}

func (tr *lineTransport) handleLine(ctx context.Context, conn net.Conn, device *devices.ID, line string) (devices.Reply, error) {
	name, token, done := "", "", devices.Result{Status: devices.StatusSucceeded}
	report := devices.Report{ID: "line", Accept: line == "ASK"}
	if n, _ := fmt.Sscanf(line, "HELLO %s %s", &name, &token); n == 2 {
		id, err := devices.ParseID(name)
		if err == nil {
			err = tr.AuthenticateSession(ctx, id, token)
		}
		if err == nil {
			*device = id
			tr.sessions.Store(id, conn)
		}
		return devices.Reply{Reason: "welcome"}, err
	} else if n, _ := fmt.Sscanf(line, "DONE %d %d", &done.Task, &done.Token); n == 2 {
		report.Results = []devices.Result{done}
	} else if !report.Accept {
		return devices.Reply{}, &devices.Error{Reason: devices.ReasonInvalid, Code: "invalid_line", Detail: "ASK, DONE or HELLO"}
	}
	if *device == "" {
		return devices.Reply{}, devices.ErrUnauthenticated
	}
	return tr.HandleReport(ctx, devices.Caller{Device: *device, Via: devices.ViaSession}, report)
}

func replyWords(reply devices.Reply) (words []any) {
	for _, ack := range reply.Acks {
		words = append(words, "ACK", ack.Task, ack.Outcome)
	}
	words = append(words, strings.ToUpper(string(reply.Reason)))
	if reply.Task != nil {
		words = append(words, reply.Task.ID, reply.Task.Token)
	}
	return words
}

type deviceConn struct {
	*testing.T
	net.Conn
	in *bufio.Scanner
}

// expect sends the line (nothing if line is empty). Then it receives one line, which must begin with want, and
// returns the rest of it.
func (d deviceConn) expect(line, want string) (rest string) {
	d.Helper()
	_ = d.SetDeadline(time.Now().Add(backends.LongTimeout))
	_, _ = fmt.Fprint(d.Conn, line)
	d.in.Scan()
	rest, ok := strings.CutPrefix(d.in.Text(), want+" ")
	if !ok {
		d.Fatalf("%q: heard %q (%v), want %q", line, d.in.Text(), d.in.Err(), want)
	}
	return rest
}

func TestAnotherWireTheSameDecisions(t *testing.T) {
	t.Parallel()
	ledger, tr := backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db")), &lineTransport{}
	d := dispatcher.New(dispatcher.Config{
		Store: ledger, Semaphore: slots.New(backends.OpenRedis(t, servers.InProcessRedis(t)).Client),
		Waker: tr, Offer: backends.LongTimeout, FleetTokens: []string{"secret"},
	})
	defer func() { _ = d.Waiters.Stop(context.Background()) }()
	tr.Handler = d
	tasks := func(yield func(store.NewTask, error) bool) {
		_ = yield(store.NewTask{Device: "one"}, nil) && yield(store.NewTask{Device: "two"}, nil)
	}
	_, _, noPool := ledger.PutPool(t.Context(), "test", "p", store.PoolSpec{Capacity: 1, Lease: time.Hour})
	_, noBatch := ledger.CreateBatch(t.Context(), "test", store.Batch{Pool: "p", Kind: "k", Weight: 1, MaxAttempts: 1, OnLost: "retry"}, store.NewBatchTasks{Tasks: tasks})
	_, unknown := d.Upkeep.Reconcile(t.Context())
	l, deaf := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, errors.Join(noPool, noBatch, unknown, deaf))
	defer l.Close()
	connect := func() deviceConn {
		here, _ := net.Dial("tcp", l.Addr().String())
		there, err := l.Accept()
		must.Succeed(t, err)
		t.Cleanup(func() { here.Close() })
		go tr.serve(t.Context(), there)
		return deviceConn{t, here, bufio.NewScanner(here)}
	}
	one, two := connect(), connect()
	one.expect("ASK\n", "REFUSED unauthenticated true")
	one.expect("HELLO one wrong\n", "REFUSED unauthenticated true")
	one.expect("HELLO one secret\n", "WELCOME")
	two.expect("HELLO two secret\n", "WELCOME")
	grant := one.expect("ASK\n", "GRANTED") // The rest begins with the task id and the token.
	two.expect("ASK\n", "FULL")
	one.expect("DONE x\n", "REFUSED invalid_line false")
	one.expect("DONE "+grant+"\n", "ACK 1 recorded DECLINED")
	two.expect("", "WAKE")
	two.expect("ASK\n", "GRANTED")
}

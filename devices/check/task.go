package check

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

type taskPlan struct {
	seconds     int           // time for which the task keeps its connection to the external system; default 1
	lease       time.Duration // default 20 s
	reportAfter time.Duration // report_after_ms of the reply with the grant; default replyPeriod
	output      int           // bytes of output in the result
	padding     int           // additional bytes in the payload
}

// task is a task that the check grants, and what the device did with it.
type task struct {
	devices.Task
	taskPlan

	forbidden  string          // the rule that forbids to start the task; "": it may start
	leaseRule  string          // the rule that is broken if the device works after end
	isWithheld bool            // the result is not acknowledged, and a report may lack it
	isLapsing  bool            // the lease is not renewed
	outcome    devices.Outcome // outcome with which the check acknowledges the result

	end             time.Time // end of the lease. The device computes the same end or an earlier one
	isStarted       bool      // the device entered the external system, or listed the task as running
	entered, left   time.Time // begin and end of the latest connection to the external system; left is zero while the connection is open
	starts          int       // number of connections of the task to the external system
	boot            int       // number of reboots before the latest connection
	reported        time.Time // first report with its result
	result          devices.Result
	acked           time.Time // first reply with an outcome
	cancelled       time.Time // first reply that cancels it
	isGrantRepeated bool      // the grant was sent again when the device had the result
}

// newTask returns a task that is not granted yet. Its token is above the tokens of earlier tasks.
func (r *run) newTask(wanted taskPlan) *task {
	const gap = 10 // leaves room for tokens between two tasks
	wanted.seconds, wanted.lease, wanted.reportAfter = cmp.Or(wanted.seconds, 1), cmp.Or(wanted.lease, 20*time.Second), cmp.Or(wanted.reportAfter, replyPeriod)
	outcomes := []devices.Outcome{devices.OutcomeRecorded, devices.OutcomeDuplicate, devices.OutcomeLate, devices.OutcomeUnknown, devices.OutcomeRejected}
	n := int64(len(r.tasks) + 1)
	t := &task{taskPlan: wanted, leaseRule: "lease-end", outcome: outcomes[n%int64(len(outcomes))]}
	t.Task = devices.Task{ID: n, Token: r.FirstToken + gap*n, Pool: "check", Slot: 1, Kind: "lab", Payload: r.payload(wanted), Attempt: 1, LeaseMS: wanted.lease.Milliseconds()}
	r.tasks[t.Token] = t
	return t
}

func (r *run) payload(wanted taskPlan) []byte {
	text, _ := json.Marshal(map[string]any{"system": r.system, "seconds": wanted.seconds, "output_bytes": wanted.output, "fail": "", "padding": strings.Repeat("x", wanted.padding)})
	return text // plain values: Marshal cannot fail
}

func (t *task) isInsideSystem() bool { return !t.entered.IsZero() && t.left.IsZero() }
func (t *task) isEnded() bool        { return !t.reported.IsZero() && !t.isInsideSystem() }
func (t *task) isPending() bool      { return !t.reported.IsZero() && t.acked.IsZero() }
func (t *task) isAcked() bool        { return !t.acked.IsZero() }

// serveSystem plays the external system until ctx ends: it accepts the connections of the device. The device counts as inside the external
// system while a connection is open.
func (r *run) serveSystem(ctx context.Context) error {
	defer rescue.After(ctx, r.System.Close)()
	for {
		conn, err := r.System.Accept()
		if err != nil {
			return err
		}
		rescue.Async(func() error { r.serveVisit(ctx, conn); return nil })
	}
}

// serveVisit records when the device enters and leaves the external system. The first line of conn is "DEVICE TASK TOKEN".
func (r *run) serveVisit(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer rescue.After(ctx, conn.Close)()
	line, _ := bufio.NewReader(io.LimitReader(conn, 512)).ReadString('\n')
	token, _ := strconv.ParseInt(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 10, 64)
	entered := time.Now()
	r.runInLoop(func() { r.watchEntry(r.tasks[token], entered) })
	_, _ = io.Copy(io.Discard, conn)
	left := time.Now()
	r.runInLoop(func() { r.watchExit(r.tasks[token], left) })
}

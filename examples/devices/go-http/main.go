// Command go-http is a device of the dispatcher over HTTP with long poll. It needs only the standard library.
//
// Copy this folder and fill in task.go. The rest keeps the rules of docs/protocol.md ("A device in 40 lines").
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// maxResults is the maximum number of results in one report. With 100 results in the journal, the device accepts no task.
const maxResults = 100

// entry is the granted task of a reply, or an entry of one of its lists. Unknown fields of a reply have no effect.
type entry struct {
	grant
	ID      int64           `json:"id"` // of the granted task
	LeaseMS float64         `json:"lease_ms"`
	Why     string          `json:"why"`
	Payload json.RawMessage `json:"payload"`
}

type reply struct {
	Re, Reason, Credential string
	HeldMS                 float64 `json:"held_ms"`
	ReportAfterMS          float64 `json:"report_after_ms"`
	Acks, Renewed, Cancel  []entry
	Task                   entry
}

// device keeps the rules of the protocol. Its methods run in the main goroutine. Only exchange runs in a goroutine of its own.
type device struct {
	server, id, tokenFile      string
	period, nextReport         float64
	journal                    journal
	sent                       map[string]float64 // when the last 8 reports were sent, by id
	counter, pauses, forbidden int
	most                       int   // results in a report: maxResults, or 1 after a refusal until the journal is empty
	work                       *work // nil: no task runs
	told                       grant // the last grant that came again when its result was in the journal
	giveUp                     context.CancelFunc
	events                     chan func()
}

func (d *device) run() {
	for {
		due := min(d.nextReport, monotonicNow()+1)
		if w := d.work; w != nil && w.why == "" {
			stopAt := w.end - min(1, w.lease/10) // the task has a second to leave before the lease ends
			if due = min(due, stopAt, w.renewAt); monotonicNow() >= stopAt {
				w.stop("lease ended") // whatever happened to the network
			}
		}
		if monotonicNow() >= d.nextReport || d.work != nil && monotonicNow() >= d.work.renewAt {
			d.report()
		}
		select {
		case handle := <-d.events:
			handle()
		case <-time.After(time.Duration((due - monotonicNow()) * 1e9)):
		}
	}
}

// report sends a report. If an earlier report still waits for its answer, report first closes the connection of the earlier one.
func (d *device) report() {
	d.giveUp()
	d.counter++
	id, wait, running := fmt.Sprintf("%d-%d", d.journal.Boot, d.counter), 35.0, []grant{}
	header := http.Header{"Prefer": {"wait=25"}} // long poll
	if d.work != nil {
		header, wait, running = http.Header{}, 10+20*rand.Float64(), []grant{d.work.grant}
		d.work.extend(0)
	}
	results := d.journal.Results[:min(len(d.journal.Results), d.most)]
	isReady := len(d.journal.Results) < maxResults
	body, err := json.Marshal(map[string]any{"id": id, "results": results, "running": running, "accept": isReady})
	exitOnError(err)
	delete(d.sent, fmt.Sprintf("%d-%d", d.journal.Boot, d.counter-8))
	d.sent[id] = monotonicNow()          // the lease counts from here, not from the reply
	d.nextReport = monotonicNow() + wait // if nothing arrives, the device reports again
	ctx, giveUp := context.WithTimeout(context.Background(), time.Duration((wait+10)*1e9))
	d.giveUp = giveUp
	counter := d.counter
	go func() {
		status, after, answer := d.exchange(ctx, header, body)
		d.events <- func() { d.onAnswer(counter, len(results), status, after, answer) } //nolint:contextcheck // a task outlives the report
	}()
}

// exchange returns the HTTP status (0 without an answer), the seconds until the next report (-1: not given) and the answer.
func (d *device) exchange(ctx context.Context, header http.Header, body []byte) (status int, retryAfter float64, answer reply) {
	retryAfter, answer.ReportAfterMS = -1, -1
	token, err := os.ReadFile(d.tokenFile)
	exitOnError(err)
	header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.server+"/v1/devices/"+d.id+"/report", bytes.NewReader(body))
	exitOnError(err)
	request.Header = header
	response, err := http.DefaultTransport.RoundTrip(request) // follows no redirects
	if err != nil {
		return 0, retryAfter, answer
	}
	defer response.Body.Close()
	err = json.NewDecoder(io.LimitReader(response.Body, 128<<10)).Decode(&answer)
	if err != nil && response.StatusCode == http.StatusOK {
		return 0, retryAfter, answer
	}
	if retryAfter = answer.ReportAfterMS / 1000; retryAfter < 0 {
		_, _ = fmt.Sscan(response.Header.Get("Retry-After"), &retryAfter)
	}
	return response.StatusCode, retryAfter, answer
}

func (d *device) onAnswer(reportNumber, resultCount, status int, retryAfter float64, answer reply) {
	again := status == http.StatusOK && d.onReply(answer)
	if reportNumber != d.counter { // the answer to a report that was given up; its reply is valid
		return
	}
	switch status {
	case 200:
		if d.forbidden = 0; retryAfter < 0 {
			retryAfter = d.period
		}
	case 401, 403, 429:
		retryAfter = min(600*float64(int(1)<<min(d.forbidden, 6)), 6*3600)
		d.forbidden++
	case 400, 413, 422:
		d.onRefusal(resultCount)
	}
	if d.pauses++; retryAfter >= 0 {
		d.pauses = 0
	} else {
		retryAfter = rand.Float64() * min(float64(int(1)<<min(d.pauses-1, 20)), d.period)
	}
	if d.nextReport = monotonicNow() + retryAfter; again {
		d.nextReport = 0
	}
}

// onRefusal sends results one by one from now on. A result that is refused alone is resent without its output, then it is dropped.
func (d *device) onRefusal(resultCount int) {
	if d.most = 1; resultCount == 1 {
		if first := &d.journal.Results[0]; first.Output == nil {
			d.journal.removeResult(first.grant)
		} else {
			first.Output = nil
		}
		d.journal.save()
	}
}

// onReply handles a reply. It returns true if the device must report at once.
func (d *device) onReply(answer reply) (mustReport bool) {
	sent, isKnown := d.sent[answer.Re]
	sent += answer.HeldMS / 1000
	if answer.Credential != "" {
		replaceFile(d.tokenFile, []byte(answer.Credential+"\n"))
	}
	for _, a := range answer.Acks { // every outcome is final
		d.journal.removeResult(a.grant)
	}
	if len(answer.Acks) > 0 {
		d.journal.save()
	}
	if len(d.journal.Results) == 0 {
		d.most = maxResults
	}
	for _, n := range answer.Renewed {
		if d.work != nil && n.grant == d.work.grant && isKnown {
			d.work.extend(sent + n.LeaseMS/1000)
		}
	}
	for _, c := range answer.Cancel {
		if d.work != nil && c.grant == d.work.grant {
			d.work.stop(c.Why)
		}
	}
	return answer.Reason == "granted" && isKnown && d.onGrant(grant{answer.Task.ID, answer.Task.Token}, sent+answer.Task.LeaseMS/1000, answer.Task.Payload)
}

func (d *device) onGrant(granted grant, leaseEnd float64, payload json.RawMessage) (mustReport bool) {
	switch {
	case slices.ContainsFunc(d.journal.Results, func(r result) bool { return r.grant == granted }):
		mustReport, d.told = granted != d.told, granted // finished: the result goes again, at once only the first time
	case d.work != nil && d.work.grant == granted:
		d.work.extend(leaseEnd)
	case d.work == nil && monotonicNow() < leaseEnd && granted.Token > d.journal.top: // never an older token or the same one
		d.journal.recordStart(granted)
		ctx, cancel := context.WithCancel(context.Background())
		w := &work{grant: granted, lease: leaseEnd - monotonicNow()}
		w.stop = func(why string) { w.why, w.renewAt = why, never; cancel() }
		w.extend(leaseEnd)
		d.work = w
		go func() {
			r := result{grant: granted}
			r.Status, r.Output, r.Error = task(ctx, payload, fmt.Sprint(d.id, " ", granted.Task, " ", granted.Token))
			d.events <- func() { d.onTaskEnd(r) }
		}()
	}
	return mustReport
}

func (d *device) onTaskEnd(outcome result) {
	if d.work.why != "" && outcome.Status != "succeeded" {
		outcome.Status, outcome.Error = "failed", d.work.why
	}
	d.work.stop("")
	if _, err := json.Marshal(outcome.Output); err != nil { // a wrong value is a fault of the task
		outcome.Status, outcome.Output, outcome.Error = "failed", nil, err.Error()
	}
	d.journal.keepResult(outcome)
	d.work, d.nextReport = nil, monotonicNow()
}

func main() {
	d := &device{most: maxResults, sent: map[string]float64{}, giveUp: func() {}, events: make(chan func())}
	flag.StringVar(&d.server, "server", "", "http(s)://host:port")
	flag.StringVar(&d.id, "device", "", "device id")
	flag.StringVar(&d.tokenFile, "token-file", "", "file with the token")
	flag.StringVar(&d.journal.path, "journal", "", "file for the results and the running task")
	flag.Float64Var(&d.period, "period", 30, "seconds between reports if no answer names a time")
	authorities := flag.String("ca-file", "", "certificates that the server's certificate is checked against")
	flag.Parse()
	exitOnError(os.Setenv("SSL_CERT_FILE", *authorities)) // empty: the certificates of the system
	d.journal.loadJournal()
	d.run()
}

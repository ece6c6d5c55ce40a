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

// maxResults is the maximum in one report. With 100 results in the journal the device accepts no task.
const maxResults = 100

// entry is a member of a reply. Unknown fields of a reply have no effect.
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

// device keeps the rules of the protocol. Its methods run in the main goroutine, except exchange.
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
		due := min(d.nextReport, now()+1)
		if w := d.work; w != nil && w.why == "" {
			stopAt := w.end - min(1, w.lease/10) // the task has a second to leave before the lease ends
			if due = min(due, stopAt, w.renewAt); now() >= stopAt {
				w.stop("lease ended") // whatever happened to the network
			}
		}
		if now() >= d.nextReport || d.work != nil && now() >= d.work.renewAt {
			d.report()
		}
		select {
		case handle := <-d.events:
			handle()
		case <-time.After(time.Duration((due - now()) * 1e9)):
		}
	}
}

// report sends a report. A report that waits for its answer is given up: its connection is closed.
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
	check(err)
	delete(d.sent, fmt.Sprintf("%d-%d", d.journal.Boot, d.counter-8))
	d.sent[id] = now()          // the lease counts from here, not from the reply
	d.nextReport = now() + wait // if nothing arrives, the device reports again
	ctx, giveUp := context.WithTimeout(context.Background(), time.Duration((wait+10)*1e9))
	d.giveUp = giveUp
	counter := d.counter
	go func() {
		status, after, answer := d.exchange(ctx, header, body)
		d.events <- func() { d.onAnswer(counter, len(results), status, after, answer) } //nolint:contextcheck // a task outlives the report
	}()
}

// exchange returns the status of HTTP (0 without an answer), the seconds to wait (-1: not given) and the answer.
func (d *device) exchange(ctx context.Context, header http.Header, body []byte) (status int, after float64, r reply) {
	after, r.ReportAfterMS = -1, -1
	token, err := os.ReadFile(d.tokenFile)
	check(err)
	header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.server+"/v1/devices/"+d.id+"/report", bytes.NewReader(body))
	check(err)
	request.Header = header
	response, err := http.DefaultTransport.RoundTrip(request) // follows no redirects
	if err != nil {
		return 0, after, r
	}
	defer response.Body.Close()
	err = json.NewDecoder(io.LimitReader(response.Body, 128<<10)).Decode(&r)
	if err != nil && response.StatusCode == http.StatusOK {
		return 0, after, r
	}
	if after = r.ReportAfterMS / 1000; after < 0 {
		_, _ = fmt.Sscan(response.Header.Get("Retry-After"), &after)
	}
	return response.StatusCode, after, r
}

func (d *device) onAnswer(counter, results, status int, after float64, r reply) {
	again := status == http.StatusOK && d.onReply(r)
	if counter != d.counter { // the answer to a report that was given up; its reply is valid
		return
	}
	switch status {
	case 200:
		if d.forbidden = 0; after < 0 {
			after = d.period
		}
	case 401, 403, 429:
		after = min(600*float64(int(1)<<min(d.forbidden, 6)), 6*3600)
		d.forbidden++
	case 400, 413, 422:
		d.onRefusal(results)
	}
	if d.pauses++; after >= 0 {
		d.pauses = 0
	} else {
		after = rand.Float64() * min(float64(int(1)<<min(d.pauses-1, 20)), d.period)
	}
	if d.nextReport = now() + after; again {
		d.nextReport = 0
	}
}

// onRefusal sends results one by one from now on. A result that is refused alone loses its output, then it is dropped.
func (d *device) onRefusal(results int) {
	if d.most = 1; results == 1 {
		if first := &d.journal.Results[0]; first.Output == nil {
			d.journal.remove(first.grant)
		} else {
			first.Output = nil
		}
		d.journal.save()
	}
}

// onReply returns whether the device has something to report at once.
func (d *device) onReply(r reply) bool {
	sent, isKnown := d.sent[r.Re]
	sent += r.HeldMS / 1000
	if r.Credential != "" {
		replaceFile(d.tokenFile, []byte(r.Credential+"\n"))
	}
	for _, a := range r.Acks { // every outcome is final
		d.journal.remove(a.grant)
	}
	if len(r.Acks) > 0 {
		d.journal.save()
	}
	if len(d.journal.Results) == 0 {
		d.most = maxResults
	}
	for _, n := range r.Renewed {
		if d.work != nil && n.grant == d.work.grant && isKnown {
			d.work.extend(sent + n.LeaseMS/1000)
		}
	}
	for _, c := range r.Cancel {
		if d.work != nil && c.grant == d.work.grant {
			d.work.stop(c.Why)
		}
	}
	return r.Reason == "granted" && isKnown && d.onGrant(grant{r.Task.ID, r.Task.Token}, sent+r.Task.LeaseMS/1000, r.Task.Payload)
}

func (d *device) onGrant(g grant, end float64, payload json.RawMessage) (again bool) {
	switch {
	case slices.ContainsFunc(d.journal.Results, func(r result) bool { return r.grant == g }):
		again, d.told = g != d.told, g // finished: the result goes again, at once only the first time
	case d.work != nil && d.work.grant == g:
		d.work.extend(end)
	case d.work == nil && now() < end && g.Token > d.journal.top: // never an older token or the same one
		d.journal.start(g)
		ctx, cancel := context.WithCancel(context.Background())
		w := &work{grant: g, lease: end - now()}
		w.stop = func(why string) { w.why, w.renewAt = why, never; cancel() }
		w.extend(end)
		d.work = w
		go func() {
			r := result{grant: g}
			r.Status, r.Output, r.Error = task(ctx, payload, fmt.Sprint(d.id, " ", g.Task, " ", g.Token))
			d.events <- func() { d.onEnd(r) }
		}()
	}
	return again
}

func (d *device) onEnd(r result) {
	if d.work.why != "" && r.Status != "succeeded" {
		r.Status, r.Error = "failed", d.work.why
	}
	d.work.stop("")
	if _, err := json.Marshal(r.Output); err != nil { // a wrong value is a fault of the task
		r.Status, r.Output, r.Error = "failed", nil, err.Error()
	}
	d.journal.keep(r)
	d.work, d.nextReport = nil, now()
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
	check(os.Setenv("SSL_CERT_FILE", *authorities)) // empty: the certificates of the system
	d.journal.open()
	d.run()
}

package check

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// mistake describes how a fakeDevice breaks a rule of the protocol on purpose.
type mistake string

const (
	forgetsAtReboot    mistake = "the result is reported before it is in the journal"
	forgetsOnRefusal   mistake = "a result is forgotten after 503"
	startsTwice        mistake = "the same token is started twice"
	startsOlder        mistake = "an older token is started"
	countsFromReply    mistake = "the lease is counted from the reply"
	usesWallClock      mistake = "the lease uses the wall clock"
	ignoresHeld        mistake = "held_ms is left out"
	ignoresCancel      mistake = "work goes on after a cancel"
	repeatsTooLarge    mistake = "a report that was refused with 413 is sent again for ever"
	ignoresRetryAfter  mistake = "Retry-After is ignored"
	failsOnUnknown     mistake = "an unknown field ends the program"
	repeatsWithoutPace mistake = "a repeated result is reported at once each time"

	neverRenews          mistake = "the lease is not renewed"
	ignoresLease         mistake = "work goes on after the lease"
	startsUnsent         mistake = "a grant is started that answers no report"
	reusesIDs            mistake = "report ids begin anew after a reboot"
	keepsResults         mistake = "a result is reported after its outcome"
	reportsBeforeLeaving mistake = "a result is reported before the external system is left"
	reportsLate          mistake = "a result waits for the next report"
	spins                mistake = "there is no pause after a broken connection"
	impatient            mistake = "a report without an answer is repeated after 3 s"
	remembersTop         mistake = "the highest started token survives a reboot"
	losesResultOnLost    mistake = "a result is forgotten when the connection breaks"
	stopsOnRefusal       mistake = "work stops when a report is refused"
	dropsLargeReply      mistake = "a reply above 16 KiB is not read"
	repeatsAtWork        mistake = "a refused report is repeated at once while a task runs"
	sendsNoToken         mistake = "no token is sent"
)

// fakeDevice is a device that follows the 40 lines of docs/protocol.md, with at most one mistake. It runs in the virtual time of synctest.
type fakeDevice struct {
	run     *run
	wrong   mistake
	isPlain bool // no long poll, no optional fields
	rejects bool // it knows no lab task

	mu      sync.Mutex
	stop    func()
	boot    int
	count   int
	shift   time.Duration // of the wall clock
	sent    map[string]time.Time
	top     int64
	told    int64
	journal []devices.Result
	flash   []devices.Result // the journal that survives a reboot
	work    *fakeWork
	alone   bool          // results are sent one by one
	refused map[int64]int // by token: how often the result was refused alone
	news    chan struct{} // a report is due at once
}

type fakeWork struct {
	devices.Task
	end       time.Time
	cancelled chan struct{}
	renewAt   time.Time
}

func (d *fakeDevice) is(m mistake) bool { return d.wrong == m }

func (d *fakeDevice) start(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, d.stop = context.WithCancel(ctx)
	d.boot++
	d.sent, d.work, d.told, d.refused, d.alone = map[string]time.Time{}, nil, 0, map[int64]int{}, false
	d.news = make(chan struct{}, 1)
	d.journal = append([]devices.Result(nil), d.flash...)
	if !d.is(reusesIDs) {
		d.count++
	}
	if !d.is(remembersTop) {
		d.top = 0
	}
	for _, r := range d.journal {
		d.top = max(d.top, r.Token)
	}
	if d.is(reusesIDs) {
		d.count = 0
	}
	go d.reports(ctx)
}

// reboot is Options.Reboot.
func (d *fakeDevice) reboot() error {
	d.mu.Lock()
	d.stop()
	d.mu.Unlock()
	<-time.After(300 * time.Millisecond)
	d.start(context.Background()) // ended by the stop of the test
	return nil
}

// now returns the time of the clock by which the device measures leases.
func (d *fakeDevice) now() time.Time {
	if d.is(usesWallClock) {
		return time.Now().Add(d.shift)
	}
	return time.Now()
}

// save copies the journal of results to the flash, which survives a reboot.
func (d *fakeDevice) save() { d.flash = append([]devices.Result(nil), d.journal...) }

// atOnce makes the device send its next report without a pause.
func (d *fakeDevice) atOnce() {
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// reports sends one report after the other until ctx ends.
func (d *fakeDevice) reports(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		wait, isAnswered := d.report(ctx, &failures)
		d.mu.Lock()
		renew := time.Hour
		if d.work != nil && !d.work.renewAt.IsZero() && !d.is(neverRenews) {
			renew = d.work.renewAt.Sub(d.now())
		}
		news := d.news
		d.mu.Unlock()
		if !isAnswered {
			news = nil // a refusal: news has to wait
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(0, min(wait, renew))):
		case <-news:
		}
	}
}

// body returns the id, the results and the JSON text of the next report.
func (d *fakeDevice) body() (id string, results []devices.Result, body []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	id = fmt.Sprintf("b%d-%d", d.boot, d.count)
	if d.is(reusesIDs) {
		id = fmt.Sprintf("r-%d", d.count)
	}
	d.sent[id] = d.now()
	select {
	case <-d.news: // this report has it
	default:
	}
	report := map[string]any{"id": id}
	results = d.journal
	if d.alone && len(results) > 1 {
		results = results[:1]
	}
	var entries []any
	for _, r := range results {
		entry := map[string]any{"task": r.Task, "token": r.Token, "status": r.Status}
		if d.refused[r.Token] == 0 || d.is(repeatsTooLarge) {
			if r.Output != nil {
				entry["output"] = r.Output
			}
		}
		if r.Error != "" {
			entry["error"] = r.Error
		}
		entries = append(entries, entry)
	}
	report["results"] = entries
	if d.work != nil {
		report["running"] = []any{map[string]any{"task": d.work.ID, "token": d.work.Token}}
		left := d.work.end.Sub(d.now()) / 2
		d.work.renewAt = time.Time{}
		if left >= time.Second {
			d.work.renewAt = d.now().Add(left) // until the reply says otherwise
		}
	}
	if !d.isPlain && len(d.sent) == 1 { // changed attributes: the first report of this boot
		report["attributes"] = map[string]any{"firmware": "1"}
	}
	body, _ = json.Marshal(report)
	return id, results, body
}

// report sends one report and handles the answer. It returns the time until the next report.
func (d *fakeDevice) report(boot context.Context, failures *int) (wait time.Duration, isAnswered bool) {
	_, results, body := d.body()
	timeout := 10*time.Second + rand.N(20*time.Second)
	if !d.isPlain {
		timeout = 36 * time.Second
	}
	if d.is(impatient) {
		timeout = 3 * time.Second
	}
	ctx, cancel := context.WithTimeout(boot, timeout)
	defer cancel()
	response := d.post(ctx, body)
	d.mu.Lock()
	defer d.mu.Unlock()
	if ctx.Err() != nil {
		return 0, true
	}
	if response == nil {
		if d.is(losesResultOnLost) {
			d.journal = nil
		}
		if *failures++; d.is(spins) {
			return 0, true
		}
		return rand.N(min(time.Second<<(*failures-1), 2*time.Second)), true
	}
	*failures = 0
	var answer struct {
		ReportAfterMS int64 `json:"report_after_ms"`
	}
	_ = json.Unmarshal(response.Body.Bytes(), &answer)
	wait = time.Duration(answer.ReportAfterMS) * time.Millisecond
	switch response.Code {
	case http.StatusOK:
		d.reply(boot, response.Body.Bytes())
		return wait, true
	case http.StatusRequestEntityTooLarge:
		d.tooLarge(results)
		return wait, false
	default:
		if d.is(forgetsOnRefusal) {
			d.journal = nil
		}
		if d.is(stopsOnRefusal) && d.work != nil {
			close(d.work.cancelled)
		}
		if after := response.Header().Get("Retry-After"); after != "" && wait == 0 {
			wait, _ = time.ParseDuration(after + "s")
		}
		if d.is(ignoresRetryAfter) || d.is(repeatsAtWork) && d.work != nil {
			wait = time.Second / 2
		}
		return max(wait, 100*time.Millisecond), false
	}
}

// tooLarge handles a refusal with status 413. results are the results of the refused report.
func (d *fakeDevice) tooLarge(results []devices.Result) {
	if d.is(repeatsTooLarge) {
		return
	}
	if d.alone = true; len(results) != 1 {
		return
	}
	r := results[0]
	if d.refused[r.Token]++; d.refused[r.Token] > 1 || r.Output == nil {
		d.drop(r.Token)
	} else {
		d.journal = append(d.journal[1:], r) // the others first
	}
}

// drop removes the result with this token from the journal.
func (d *fakeDevice) drop(token int64) {
	var kept []devices.Result
	for _, r := range d.journal {
		if r.Token != token {
			kept = append(kept, r)
		}
	}
	d.journal = kept
	d.save()
}

// post sends the report. It returns nil if there is no answer.
func (d *fakeDevice) post(ctx context.Context, body []byte) *httptest.ResponseRecorder {
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/devices/fake/report", strings.NewReader(string(body)))
	request.SetPathValue("device", "fake")
	if !d.is(sendsNoToken) {
		request.Header.Set("Authorization", "Bearer secret")
	}
	if !d.isPlain {
		request.Header.Set("Prefer", "wait=25")
	}
	response := httptest.NewRecorder()
	isLost := true
	func() {
		defer func() {
			if cause := recover(); cause != nil && cause != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
				panic(cause)
			}
		}()
		d.run.answerHTTP(response, request)
		isLost = false
	}()
	if isLost || d.is(dropsLargeReply) && response.Body.Len() > 16<<10 {
		return nil
	}
	return response
}

func (d *fakeDevice) reply(ctx context.Context, text []byte) {
	var r struct {
		devices.Reply
		Weather any `json:"weather"`
	}
	_ = json.Unmarshal(text, &r)
	if r.Weather != nil && d.is(failsOnUnknown) {
		d.stop()
		return
	}
	for _, ack := range r.Acks {
		if !d.is(keepsResults) {
			d.drop(ack.Token)
		}
	}
	sentAt, isSent := d.sent[r.Re]
	if d.is(countsFromReply) {
		sentAt = d.now()
	}
	if d.is(ignoresHeld) {
		r.HeldMS = 0
	}
	endOf := func(ms int64) time.Time { return sentAt.Add(time.Duration(r.HeldMS+ms) * time.Millisecond) }
	for _, n := range r.Renewed {
		if d.work != nil && d.work.Token == n.Token && isSent {
			d.extend(endOf(n.LeaseMS))
		}
	}
	for _, c := range r.Cancel {
		if d.work != nil && d.work.Token == c.Token && !d.is(ignoresCancel) {
			close(d.work.cancelled)
		}
	}
	if r.Task != nil && (isSent || d.is(startsUnsent)) {
		if !isSent {
			sentAt = d.now()
		}
		d.grant(ctx, *r.Task, endOf(r.Task.LeaseMS))
	}
}

func (d *fakeDevice) extend(end time.Time) {
	if end.After(d.work.end) {
		d.work.end = end
	}
	if left := d.work.end.Sub(d.now()) / 2; left >= time.Second {
		d.work.renewAt = d.now().Add(left)
	}
}

func (d *fakeDevice) grant(ctx context.Context, t devices.Task, end time.Time) {
	for _, r := range d.journal {
		if r.Token == t.Token {
			if d.told != t.Token || d.is(repeatsWithoutPace) {
				d.told = t.Token
				d.atOnce()
			}
			return
		}
	}
	isNewer := t.Token > d.top || d.is(startsTwice) && t.Token == d.top || d.is(startsOlder) && t.Token != d.top
	switch {
	case d.work != nil && d.work.Token == t.Token:
		d.extend(end)
	case d.work == nil && d.now().Before(end) && isNewer:
		d.top = max(d.top, t.Token)
		if d.rejects {
			d.journal = append(d.journal, devices.Result{Task: t.ID, Token: t.Token, Status: devices.StatusRejected})
			d.save()
			d.atOnce()
			return
		}
		d.work = &fakeWork{Task: t, cancelled: make(chan struct{})}
		d.extend(end)
		go d.do(ctx, d.work)
	}
}

func (d *fakeDevice) do(ctx context.Context, w *fakeWork) {
	var payload struct {
		Seconds int `json:"seconds"`
		Output  int `json:"output_bytes"`
	}
	_ = json.Unmarshal(w.Payload, &payload)
	ours, theirs := net.Pipe()
	go d.run.serveVisit(ctx, theirs)
	_, _ = fmt.Fprintf(ours, "fake %d %d\n", w.ID, w.Token)
	result := devices.Result{Task: w.ID, Token: w.Token, Status: devices.StatusSucceeded}
	end := time.Now().Add(time.Duration(payload.Seconds) * time.Second)
	for result.Status == devices.StatusSucceeded && time.Now().Before(end) {
		select {
		case <-ctx.Done():
			ours.Close()
			return
		case <-w.cancelled:
			result.Status, result.Error = devices.StatusFailed, "cancelled"
		case <-time.After(50 * time.Millisecond):
			d.mu.Lock()
			if !d.now().Before(w.end) && !d.is(ignoresLease) {
				result.Status, result.Error = devices.StatusFailed, "lease ended"
			}
			d.mu.Unlock()
		}
	}
	if d.is(reportsBeforeLeaving) {
		defer ours.Close()
		defer func() { <-time.After(time.Second) }()
	} else {
		ours.Close()
	}
	if payload.Output > 0 {
		result.Output, _ = json.Marshal(strings.Repeat("x", payload.Output))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.journal, d.work = append(d.journal, result), nil
	if !d.is(forgetsAtReboot) {
		d.save()
	}
	if !d.is(reportsLate) {
		d.atOnce()
	}
}

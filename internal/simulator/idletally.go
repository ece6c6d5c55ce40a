package simulator

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// maxBehind is the maximum IdleSummary.DelayAtEnd (the time by which the fleet is behind its pace)
// with which Err accepts a run.
const maxBehind = time.Second

// answerCounts holds the counts since the start of the run.
type answerCounts struct {
	answers    map[string]int64 // key: the reason of a reply; for an error, its status and code
	errors     int64            // wrong replies, error answers, and reports without an answer
	granted    int64
	firstError string    // the first error
	times      histogram // response times; only tally.read sets it
}

// tally counts the answers to an idle fleet.
type tally struct {
	mu sync.Mutex
	answerCounts
	times prometheus.Histogram // response times
}

// newTally returns a tally whose buckets for response times grow by 9 %, from 50 us to a minute.
func newTally() tally {
	steps := prometheus.ExponentialBucketsRange(50e-6, 60, 162)
	return tally{answerCounts: answerCounts{answers: map[string]int64{}}, times: prometheus.NewHistogram(prometheus.HistogramOpts{Buckets: steps})}
}

// add counts one answer to the report outgoing, which took this time.
func (t *tally) add(outgoing report, answer linkMessage, took time.Duration) {
	name, wrong := classify(outgoing, answer)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers[name]++
	t.times.Observe(took.Seconds())
	if name == reasonGranted {
		t.granted++
	}
	if wrong != "" {
		t.errors++
		t.firstError = orDefault(t.firstError, wrong)
	}
}

// read returns a copy of the counts.
func (t *tally) read() answerCounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.answerCounts
	c.answers, c.times = maps.Clone(t.answers), histogram{}
	var times dto.Metric
	_ = t.times.Write(&times) // cannot fail for a histogram
	c.times.add(times.GetHistogram())
	c.times[math.Inf(1)] = float64(times.GetHistogram().GetSampleCount())
	return c
}

// classify returns the name under which answer, the answer to outgoing, is counted, and, as wrong, a description of its error. wrong is
// empty for a correct answer.
func classify(outgoing report, answer linkMessage) (name, wrong string) {
	switch {
	case answer.err != nil:
		return "no answer", answer.err.Error()
	case answer.kind != answered:
		name = strings.TrimSpace(fmt.Sprintf("%d %s", answer.status, answer.reply.Code))
		return name, name + ": " + orDefault(answer.reply.Detail, http.StatusText(answer.status))
	case answer.reply.Re != outgoing.ID:
		return answer.reply.Reason, fmt.Sprintf("a reply to %q arrived for report %q", answer.reply.Re, outgoing.ID)
	}
	return answer.reply.Reason, strings.Join(answer.reply.violations(outgoing), "; ")
}

// reportCount returns the number of reports that were answered or failed.
func (c answerCounts) reportCount() (n int64) {
	for _, answers := range c.answers {
		n += answers
	}
	return n
}

// byReason returns a text with the number of answers of each name that came after the older counts earlier were read.
func (c answerCounts) byReason(earlier answerCounts) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c.answers)) {
		if n := c.answers[name] - earlier.answers[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, n))
		}
	}
	return strings.Join(parts, ", ")
}

// quantiles returns the quantiles of the observations.
func (h histogram) quantiles() Quantiles {
	return Quantiles{P50: h.quantile(0.50), P99: h.quantile(0.99)}
}

// showProgress writes the counts since the previous progress line, at which the counts were earlier. It returns the current counts.
func (f *idleFleet) showProgress(earlier answerCounts) answerCounts {
	now := f.tally.read()
	f.progress.writeLine("%7s  %d reports/s: %s  %s  errors %d  behind %s",
		time.Since(f.started).Round(time.Second), now.reportCount()-earlier.reportCount(), orDefault(now.byReason(earlier), "-"),
		now.times.minus(earlier.times).quantiles(), now.errors-earlier.errors, f.timeBehind(now, time.Since(f.started)).Round(time.Millisecond))
	return now
}

// IdleSummary is the result of an idle run.
type IdleSummary struct {
	Devices    int
	Period     time.Duration
	Elapsed    time.Duration
	Reports    int64
	Answers    string    // number of answers per reason, and of errors per status and code
	Times      Quantiles // response times
	Granted    int64     // reports that were answered with a task
	Errors     int64
	FirstError string        // the first error
	DelayAtEnd time.Duration // how far the fleet was behind its pace at the end of the run
}

// timeBehind returns the time by which the fleet is behind its pace of one report per device and period: the elapsed time minus the time
// that the answered reports in current take at this pace.
func (f *idleFleet) timeBehind(current answerCounts, elapsed time.Duration) time.Duration {
	done := float64(current.reportCount()) / float64(f.config.Devices) * float64(f.config.Period)
	return max(elapsed-time.Duration(done), 0)
}

// summary returns the result of the run.
func (f *idleFleet) summary() IdleSummary {
	c := f.tally.read()
	return IdleSummary{
		Devices: f.config.Devices, Period: f.config.Period, Elapsed: f.elapsed, Reports: c.reportCount(), Answers: c.byReason(answerCounts{}),
		Times: c.times.quantiles(), Granted: c.granted, Errors: c.errors, FirstError: c.firstError, DelayAtEnd: f.timeBehind(c, f.elapsed),
	}
}

// Err returns an error if the dispatcher did not answer every report, or if the fleet fell behind its pace.
func (s IdleSummary) Err() error {
	var errs []error
	if s.Reports == 0 {
		errs = append(errs, errors.New("no report was answered"))
	}
	if s.Errors > 0 {
		errs = append(errs, fmt.Errorf("%d of %d reports got a wrong reply or none, first: %s", s.Errors, s.Reports, s.FirstError))
	}
	if s.Granted > 0 {
		errs = append(errs, fmt.Errorf("%d reports were granted tasks, and this fleet does not do tasks: use a prefix whose devices have no tasks", s.Granted))
	}
	if s.DelayAtEnd > maxBehind {
		errs = append(errs, fmt.Errorf("the fleet fell behind: at the end reports were %s late", s.DelayAtEnd.Round(time.Millisecond)))
	}
	return errors.Join(errs...)
}

// Print writes the summary to out, as text for people.
func (s IdleSummary) Print(out io.Writer) error {
	_, err := fmt.Fprintf(out, `devices    %d, each once in %s: %.0f reports/s wanted
reports    %d in %s: %.0f/s
answers    %s
errors     %d
times      %s
behind     %s
`, s.Devices, s.Period, float64(s.Devices)/s.Period.Seconds(), s.Reports, s.Elapsed.Round(10*time.Millisecond), float64(s.Reports)/s.Elapsed.Seconds(),
		orDefault(s.Answers, "none"), s.Errors, s.Times, s.DelayAtEnd.Round(time.Millisecond))
	return err
}

package simulator

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// maxBehind is the longest IdleSummary.DelayAtEnd that Err accepts.
const maxBehind = time.Second

// answerCounts holds the answers to an idle fleet since the start of the run or since the last progress line.
type answerCounts struct {
	answers    map[string]int64 // key: the reason of a reply; for an error, its status and code
	reports    int64            // reports that were answered or failed
	errors     int64            // wrong replies, error answers, and reports without an answer
	firstError string
	times      prometheus.Summary // response times
}

func newAnswerCounts() *answerCounts {
	return &answerCounts{answers: map[string]int64{}, times: prometheus.NewSummary(prometheus.SummaryOpts{
		Objectives: map[float64]float64{0.50: 0.01, 0.99: 0.001}, // quantiles with the accepted error of their rank
		MaxAge:     365 * 24 * time.Hour,                         // longer than any run: old times count like new ones
	})}
}

func (c *answerCounts) add(answerName, problem string, responseTime time.Duration) {
	c.answers[answerName]++
	c.reports++
	c.times.Observe(responseTime.Seconds())
	if problem != "" {
		c.errors++
		c.firstError = cmp.Or(c.firstError, problem)
	}
}

func (c *answerCounts) formatByReason() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c.answers)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, c.answers[name]))
	}
	return strings.Join(parts, ", ")
}

func (c *answerCounts) quantiles() Quantiles {
	var times dto.Metric
	_ = c.times.Write(&times) // cannot fail for a summary
	if c.reports == 0 {
		return Quantiles{}
	}
	found := map[float64]time.Duration{}
	for _, q := range times.GetSummary().GetQuantile() {
		found[q.GetQuantile()] = time.Duration(q.GetValue() * float64(time.Second))
	}
	return Quantiles{P50: found[0.50], P99: found[0.99]}
}

type idleTally struct {
	mu          sync.Mutex
	all, recent *answerCounts // of the run, and since the last progress line
}

func (t *idleTally) add(outgoing report, answer linkMessage, responseTime time.Duration) {
	name, problem := classifyAnswer(outgoing, answer)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all.add(name, problem, responseTime)
	t.recent.add(name, problem, responseTime)
}

// classifyAnswer returns the name under which an answer is counted. problem describes what is wrong with the answer. It
// is empty for a correct answer.
func classifyAnswer(outgoing report, answer linkMessage) (name, problem string) {
	switch {
	case answer.err != nil:
		return "no answer", answer.err.Error()
	case answer.kind != answered:
		name = strings.TrimSpace(fmt.Sprintf("%d %s", answer.status, answer.reply.Code))
		return name, name + ": " + cmp.Or(answer.reply.Detail, http.StatusText(answer.status))
	case answer.reply.Re != outgoing.ID:
		return answer.reply.Reason, fmt.Sprintf("a reply to %q arrived for report %q", answer.reply.Re, outgoing.ID)
	}
	return answer.reply.Reason, strings.Join(answer.reply.listViolations(outgoing), "; ")
}

func (f *idleFleet) showProgress() {
	f.tally.mu.Lock()
	recent, behind := f.tally.recent, f.delayBehindPace(time.Since(f.started))
	f.tally.recent = newAnswerCounts()
	f.tally.mu.Unlock()
	f.progress.writeLine("%7s  %d reports/s: %s  %s  errors %d  behind %s", time.Since(f.started).Round(time.Second), recent.reports,
		cmp.Or(recent.formatByReason(), "-"), recent.quantiles(), recent.errors, behind.Round(time.Millisecond))
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

// delayBehindPace returns by how much the fleet is behind its pace of one report per device and period.
func (f *idleFleet) delayBehindPace(elapsed time.Duration) time.Duration {
	done := float64(f.tally.all.reports) / float64(f.config.Devices) * float64(f.config.Period)
	return max(elapsed-time.Duration(done), 0)
}

// summary returns the result of the run. The connections must have ended.
func (f *idleFleet) summary() IdleSummary {
	c := f.tally.all
	return IdleSummary{
		Devices: f.config.Devices, Period: f.config.Period, Elapsed: f.elapsed, Reports: c.reports, Answers: c.formatByReason(),
		Times: c.quantiles(), Granted: c.answers[reasonGranted], Errors: c.errors, FirstError: c.firstError, DelayAtEnd: f.delayBehindPace(f.elapsed),
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
		cmp.Or(s.Answers, "none"), s.Errors, s.Times, s.DelayAtEnd.Round(time.Millisecond))
	return err
}

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	barWidth  = 30
	lineEvery = 10 * time.Second // where there is no terminal to draw on
)

// progress is how far a batch is.
type progress struct{ operators.Batch }

func readProgress(e entry) progress {
	var p progress
	text, err := json.Marshal(e)
	if err == nil {
		_ = json.Unmarshal(text, &p) // what does not fit is not shown
	}
	return p
}

// unsuccessful are those that ended otherwise than well.
func (p progress) unsuccessful() int64 { return p.Ended() - p.Counts[operators.Succeeded] }

// worst is the state of most that did not succeed.
func (p progress) worst() string {
	return slices.MaxFunc([]string{operators.Failed, operators.TimedOut, operators.Cancelled, operators.Expired, operators.Suppressed}, func(a, b string) int {
		return cmp.Compare(p.Counts[a], p.Counts[b])
	})
}

// done is how much has ended: 41200/100000 41%.
func (p progress) done() string {
	if p.Total == 0 {
		return "0/0"
	}
	return fmt.Sprintf("%d/%d %d%%", p.Ended(), p.Total, 100*p.Ended()/p.Total)
}

// line is all of it for people.
func (p progress) line() string {
	text := fmt.Sprintf("%s, %d inside, %d failed", p.done(), p.Counts[operators.Dispatched], p.Failed())
	if n := p.unsuccessful() - p.Failed(); n > 0 {
		text += fmt.Sprintf(", %d cancelled, expired or suppressed", n)
	}
	if p.RatePerMinute != nil {
		text += fmt.Sprintf(", %.0f/min", *p.RatePerMinute)
	}
	if p.ETA != nil {
		text += ", ends " + p.ETA.UTC().Format("2006-01-02 15:04:05Z")
	}
	if p.Condition != "running" {
		text += ", " + p.Condition
	}
	if p.PausedBy != "" {
		text += " by " + p.PausedBy
	}
	if p.PauseReason != "" {
		text += ": " + p.PauseReason
	}
	return text
}

// watchBatch shows a batch until it has ended: a bar on a terminal, else a line
// now and then; as JSON the batch at each change. Ctrl-C ends it as well.
func (s *session) watchBatch(batch string) error {
	last, err := s.follow(batch)
	if s.interrupted() {
		err = nil
	} else if err == nil && !s.json {
		err = s.show(last, briefBatch()...)
	}
	return err
}

// waitForBatch watches a batch that was just queued. It is an error when not
// all of its tasks succeeded.
func (s *session) waitForBatch(batch string) error {
	last, err := s.follow(batch)
	if s.interrupted() {
		return advisedError{fmt.Errorf("interrupted: batch %s goes on", batch), "dispatcher batches watch " + batch + "; dispatcher batches cancel " + batch}
	}
	if err != nil {
		return err
	}
	if !s.json {
		err = s.show(last, briefBatch()...)
	}
	var p progress
	if err = errors.Join(err, json.Unmarshal(last, &p)); err != nil {
		return err
	}
	if p.unsuccessful() > 0 {
		c := p.Counts
		return advisedError{
			fmt.Errorf("of %s %d did not succeed: %d failed, %d timed out, %d cancelled, %d expired, %d suppressed",
				counted(p.Total, "task", "tasks"), p.unsuccessful(), c[operators.Failed], c[operators.TimedOut], c[operators.Cancelled], c[operators.Expired], c[operators.Suppressed]),
			"see which: dispatcher tasks list --batch " + batch + " --state " + p.worst(),
		}
	}
	return nil
}

// follow returns the batch once it has ended. It retries failed reads until the
// caller stops waiting.
func (s *session) follow(batch string) (json.RawMessage, error) {
	show := &batchView{s: s, bar: terminal.NewProgress(s.errs), drawn: terminal.Is(s.errs)}
	defer show.bar.Clear()
	ctx := s.cmd.Context()
	for {
		text, err := s.Get(ctx, operators.Path("batches", batch), nil)
		if err != nil && (ctx.Err() != nil || !operators.Transient(err)) {
			return nil, err
		}
		if err != nil {
			show.bar.Clear()
			s.note("%v", err)
		} else if over, err := show.update(text); over || err != nil {
			return text, err
		}
		if err := operators.Pause(ctx, watchEvery); err != nil {
			return nil, err
		}
	}
}

// batchView draws a batch as it changes.
type batchView struct {
	s     *session
	bar   *terminal.Progress
	drawn bool // on a terminal
	shown string
	state string
	at    time.Time
}

func (v *batchView) update(text json.RawMessage) (over bool, err error) {
	var p progress
	if err := json.Unmarshal(text, &p); err != nil {
		return false, err
	}
	line := p.line()
	switch {
	case v.drawn:
		v.bar.Show("%s %s", terminal.Bar(p.Ended(), p.Total, barWidth), line)
	case line != v.shown && (p.State != v.state || time.Since(v.at) >= lineEvery) && !p.Over():
		v.s.note("%s", line)
		v.state, v.at = p.State, time.Now()
	}
	if v.s.json && line != v.shown {
		err = v.s.line(text)
	}
	v.shown = line
	return p.Over(), err
}

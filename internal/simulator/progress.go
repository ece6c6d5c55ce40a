package simulator

import (
	"fmt"
	"io"
	"time"
)

// progressInterval is the time between progress lines.
const progressInterval = time.Second

// printer writes lines for people. Write errors, as of a closed terminal, do not end a simulation.
type printer struct {
	to      io.Writer // nil means no output
	printed time.Time
}

func (p *printer) line(format string, args ...any) {
	p.printed = time.Now()
	if p.to != nil {
		_, _ = fmt.Fprintf(p.to, format+"\n", args...)
	}
}

// due reports whether the last line is at least progressInterval old.
func (p *printer) due() bool { return p.to != nil && time.Since(p.printed) >= progressInterval }

// registered writes how many devices have a token, if a line is due or all have one.
func (p *printer) registered(made, of int) {
	if made == of || p.due() {
		p.line("         registered %d of %d devices", made, of)
	}
}

// showProgress writes the progress line if it is due.
func (s *simulation) showProgress() {
	if !s.progress.due() {
		return
	}
	total, ended := s.work.totals()
	x, f := s.external.Stats(), s.fleet.Stats()
	trouble := ""
	if s.work.err != nil {
		trouble = "  (dispatcher: " + s.work.err.Error() + ")"
	}
	s.progress.line("%7s  held %d/%d  done %d/%d  grants %d  results %d  lapsed %d  over limit %d%s",
		time.Since(s.started).Round(time.Second), x.Inside, s.external.Capacity(), ended, total, f.Grants, f.Recorded, f.LeasesEnded, x.OverLimitInstants, trouble)
}

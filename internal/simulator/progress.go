package simulator

import (
	"fmt"
	"io"
	"time"
)

const progressInterval = time.Second

// printer writes lines for people. Write errors, as of a closed terminal, do not end a simulation.
type printer struct {
	to      io.Writer // nil means no output
	printed time.Time
}

func (p *printer) writeLine(format string, args ...any) {
	p.printed = time.Now()
	if p.to != nil {
		_, _ = fmt.Fprintf(p.to, format+"\n", args...)
	}
}

func (p *printer) isLineDue() bool { return p.to != nil && time.Since(p.printed) >= progressInterval }

// showRegistered writes the number of devices that have a token, if a line is due or all devices have a token.
func (p *printer) showRegistered(registeredDevices, totalDevices int) {
	if registeredDevices == totalDevices || p.isLineDue() {
		p.writeLine("         registered %d of %d devices", registeredDevices, totalDevices)
	}
}

func (s *simulation) showProgress() {
	if !s.progress.isLineDue() {
		return
	}
	total, ended := s.work.countTasks()
	x, f := s.external.Stats(), s.fleet.Stats()
	trouble := ""
	if s.work.err != nil {
		trouble = "  (dispatcher: " + s.work.err.Error() + ")"
	}
	s.progress.writeLine("%7s  held %d/%d  done %d/%d  grants %d  results %d  lapsed %d  over limit %d%s",
		time.Since(s.started).Round(time.Second), x.Inside, s.external.Capacity(), ended, total, f.Grants, f.Recorded, f.LeasesEnded, x.OverLimitInstants, trouble)
}

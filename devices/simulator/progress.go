package simulator

import (
	"fmt"
	"time"
)

// progressInterval is the pace of the progress line.
const progressInterval = time.Second

// showRegistered writes how many devices have a token, if it is due.
func (s *simulation) showRegistered(made int) {
	if s.progress == nil || made < s.config.Devices && time.Since(s.printed) < progressInterval {
		return
	}
	s.printed = time.Now()
	_, _ = fmt.Fprintf(s.progress, "         registered %d of %d devices\n", made, s.config.Devices)
}

// showProgress writes the progress line if it is due.
func (s *simulation) showProgress() {
	if s.progress == nil || time.Since(s.printed) < progressInterval {
		return
	}
	s.printed = time.Now()
	total, ended := s.work.totals()
	x, f := s.external.Stats(), s.fleet.Stats()
	elapsed := time.Since(s.started).Round(time.Second)
	line := fmt.Sprintf("%7s  held %d/%d  done %d/%d  grants %d  results %d  lapsed %d  over limit %d",
		elapsed, x.Inside, s.external.Capacity(), ended, total, f.Grants, f.Recorded, f.LeasesEnded, x.OverLimitInstants)
	if s.work.err != nil {
		line += "  (dispatcher: " + s.work.err.Error() + ")"
	}
	_, _ = fmt.Fprintln(s.progress, line) // a closed terminal does not end a simulation
}

package bench

import (
	"strings"
	"testing"
)

// row is one line of the table.
type row struct {
	title   string
	unit    string // of what is counted
	measure func(s *site, size scale) figures
}

// table is all rows, in their order.
func table() []row {
	return []row{
		{"one task a device, 10,000 just queued", "cycles", oneEach},
		{"500 tasks a device", "cycles", manyEach},
		{"1,000,000 queued", "cycles", manyQueued},
		{"3,000 pools", "cycles", manyPools},
		{"2 replicas", "cycles", twoReplicas},
		{"half of the maximum rate", "cycles", halfRate},
		{"in process", "cycles", inProcess},
		{"River, no-op jobs, in process", "jobs", riverJobs},
		{"asynq, no-op jobs, in process", "jobs", asynqJobs},
		{"classic: SELECT, INCR, UPDATE", "cycles", classicCycles},
		{"first reports of unknown devices", "reports", firstReports},
		{"idle reports", "reports", idleReports},
		{"bare net/http with JSON", "reports", bareReports},
		{"idle over MQTT, 10,000 devices", "reports", idleOverMQTT},
		{"MQTT without decisions", "reports", transported},
		{"MQTT subscriber that only answers", "reports", onlyAnswers},
		{"batches of 10,000 over the API", "tasks", batches},
		{"COPY of the same rows", "tasks", copies},
	}
}

// chosen are the rows whose title has one of the words; all without words.
func chosen(rows []row, words string) []row {
	var some []row
	for _, r := range rows {
		for word := range strings.SplitSeq(words, "|") {
			if strings.Contains(r.title, strings.TrimSpace(word)) {
				some = append(some, r)
				break
			}
		}
	}
	return some
}

func TestRowsAreChosenByWordsOfTheirTitles(t *testing.T) {
	t.Parallel()
	all := table()
	for words, want := range map[string]int{"": len(all), "in process": 3, "River|asynq": 2, "10,000": 3, "nobody": 0} {
		if got := len(chosen(all, words)); got != want {
			t.Errorf("%q chooses %d rows, want %d", words, got, want)
		}
	}
}

// oneEach is the row that the others are compared with: each device has one task.
func oneEach(s *site, size scale) figures {
	s.serve(1)
	s.pool("p")
	devices := s.known("d", size.queued)
	s.queue("p", devices)
	return s.measured(func() figures { return s.cycling(size, devices).run(s, cycle) })
}

func twoReplicas(s *site, size scale) figures {
	s.serve(2)
	s.pool("p")
	devices := s.known("d", size.queued)
	s.queue("p", devices)
	return s.measured(func() figures { return s.cycling(size, devices).run(s, cycle) })
}

// manyEach: each connection is one device, with all its tasks in batches of 10,000.
func manyEach(s *site, size scale) figures {
	s.serve(1)
	s.pool("p")
	devices := s.known("d", size.conns)
	var all []string
	for range size.each {
		all = append(all, devices...)
	}
	s.queue("p", all)
	l := s.cycling(size, devices)
	l.each = size.each
	return s.measured(func() figures { return l.run(s, cycle) })
}

// manyQueued: the devices that ask are the first of those that have a task.
func manyQueued(s *site, size scale) figures {
	s.serve(1)
	s.pool("p")
	asking := min(size.many, int(size.span.Seconds()*float64(size.fastest)/4))
	devices := append(s.known("d", asking), names("e", size.many-asking)...)
	s.queue("p", devices)
	return s.measured(func() figures { return s.cycling(size, devices[:asking]).run(s, cycle) })
}

// manyPools: devices that ask one after the other ask different pools.
func manyPools(s *site, size scale) figures {
	s.serve(1)
	devices := s.known("d", max(size.queued, size.pools)/size.pools*size.pools)
	s.atOnce(size.pools, func(p int) {
		name := "p" + digits(p)
		s.pool(name)
		var own []string
		for i := p; i < len(devices); i += size.pools {
			own = append(own, devices[i])
		}
		s.queue(name, own)
	})
	return s.measured(func() figures { return s.cycling(size, devices).run(s, cycle) })
}

// halfRate finds the maximum first, and then asks half as often: each cycle has its time,
// and what a report takes counts from then.
func halfRate(s *site, size scale) figures {
	s.serve(1)
	s.pool("p")
	first, then := s.known("d", size.queued), s.known("e", 2*size.queued)
	s.queue("p", first)
	most := s.cycling(size, first).run(s, cycle)
	s.queue("p", then)
	l := s.cycling(size, then)
	l.rate = most.perSecond() / 2
	return s.measured(func() figures { return l.run(s, cycle) })
}

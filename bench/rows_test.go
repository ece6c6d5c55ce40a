package bench

import (
	"strings"
	"testing"
)

// row is one line of the table of measurements.
type row struct {
	title   string
	unit    string // what is counted, for example cycles
	measure func(s *testbed, size scale) figures
}

// allRows returns all rows of the table, in their order. docs/performance.md has the table and describes the rows.
func allRows() []row {
	return []row{
		{"one task a device, 10,000 just queued", "cycles", measureOneTaskEach},
		{"500 tasks a device", "cycles", measureManyTasksEach},
		{"1,000,000 queued", "cycles", measureManyQueued},
		{"3,000 pools", "cycles", measureManyPools},
		{"2 replicas", "cycles", measureTwoReplicas},
		{"half of the maximum rate", "cycles", measureHalfRate},
		{"in process", "cycles", measureInProcess},
		{"River, no-op jobs, in process", "jobs", measureRiver},
		{"asynq, no-op jobs, in process", "jobs", measureAsynq},
		{"classic: SELECT, INCR, UPDATE", "cycles", measureClassic},
		{"first reports of unknown devices", "reports", measureFirstReports},
		{"idle reports", "reports", measureIdleReports},
		{"waiting reports", "reports", measureWaitingReports},
		{"idle reports, 2 replicas", "reports", measureIdleAtTwoReplicas},
		{"waiting reports, 2 replicas", "reports", measureWaitingAtTwoReplicas},
		{"bare net/http with JSON", "reports", measureBareHTTP},
		{"idle over MQTT, 10,000 devices", "reports", measureIdleMQTT},
		{"MQTT without decisions", "reports", measureMQTTTransport},
		{"MQTT subscriber that only answers", "reports", measureMQTTSubscriber},
		{"batches of 10,000 over the API", "tasks", measureBatches},
		{"COPY of the same rows", "tasks", measureCopies},
	}
}

// selectRows returns the rows whose title contains one of the words (separated by |). If words is empty, it returns all
// rows.
func selectRows(rows []row, words string) []row {
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
	all := allRows()
	for words, want := range map[string]int{"": len(all), "in process": 3, "River|asynq": 2, "10,000": 3, "nobody": 0} {
		if got := len(selectRows(all, words)); got != want {
			t.Errorf("%q chooses %d rows, want %d", words, got, want)
		}
	}
}

// measureOneTaskEach measures the row with which all other rows are compared: each device has one task.
func measureOneTaskEach(s *testbed, size scale) figures {
	s.startReplicas(1)
	s.createPool("p")
	devices := s.registerDevices("d", size.queuedTasks)
	s.queueBatches("p", devices)
	return s.measureCPU(func() figures { return s.newHTTPLoad(size, devices).run(s, runCycle) })
}

func measureTwoReplicas(s *testbed, size scale) figures {
	s.startReplicas(2)
	s.createPool("p")
	devices := s.registerDevices("d", size.queuedTasks)
	s.queueBatches("p", devices)
	return s.measureCPU(func() figures { return s.newHTTPLoad(size, devices).run(s, runCycle) })
}

// measureManyTasksEach measures a few devices that have many tasks each, queued in batches of 10,000. Each device
// has its own connection.
func measureManyTasksEach(s *testbed, size scale) figures {
	s.startReplicas(1)
	s.createPool("p")
	devices := s.registerDevices("d", size.conns)
	var all []string
	for range size.tasksPerDevice {
		all = append(all, devices...)
	}
	s.queueBatches("p", all)
	l := s.newHTTPLoad(size, devices)
	l.stepsPerDevice = size.tasksPerDevice
	return s.measureCPU(func() figures { return l.run(s, runCycle) })
}

// measureManyQueued measures a ledger with very many queued tasks. Only the first devices with a task report.
func measureManyQueued(s *testbed, size scale) figures {
	s.startReplicas(1)
	s.createPool("p")
	asking := min(size.manyTasks, int(size.span.Seconds()*float64(size.maxCyclesPerSecond)/4))
	devices := append(s.registerDevices("d", asking), numberedNames("e", size.manyTasks-asking)...)
	s.queueBatches("p", devices)
	return s.measureCPU(func() figures { return s.newHTTPLoad(size, devices[:asking]).run(s, runCycle) })
}

// measureManyPools measures many pools. Devices that report one after the other have their tasks in different
// pools.
func measureManyPools(s *testbed, size scale) figures {
	s.startReplicas(1)
	devices := s.registerDevices("d", max(size.queuedTasks, size.pools)/size.pools*size.pools)
	s.runConcurrently(size.pools, func(p int) {
		name := "p" + sevenDigits(p)
		s.createPool(name)
		var poolDevices []string
		for i := p; i < len(devices); i += size.pools {
			poolDevices = append(poolDevices, devices[i])
		}
		s.queueBatches(name, poolDevices)
	})
	return s.measureCPU(func() figures { return s.newHTTPLoad(size, devices).run(s, runCycle) })
}

// measureHalfRate first measures the maximum rate of cycles, and then runs cycles at half of this rate. Each cycle
// has a scheduled time, from which the duration of its first report is measured.
func measureHalfRate(s *testbed, size scale) figures {
	s.startReplicas(1)
	s.createPool("p")
	first, then := s.registerDevices("d", size.queuedTasks), s.registerDevices("e", 2*size.queuedTasks)
	s.queueBatches("p", first)
	maximum := s.newHTTPLoad(size, first).run(s, runCycle)
	s.queueBatches("p", then)
	l := s.newHTTPLoad(size, then)
	l.stepsPerSecond = maximum.perSecond() / 2
	return s.measureCPU(func() figures { return l.run(s, runCycle) })
}

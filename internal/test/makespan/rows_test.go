package makespan

import (
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
)

// These are the parameters of all rows of the table: many slots, short work, rare reports.
const (
	capacity     = 60
	work         = time.Second
	briefWork    = 400 * time.Millisecond
	period       = 15 * time.Second // 15 times the work: the same ratio as 5 min to a work of 20 s
	restTime     = 11 * time.Second // last-seen times are written every 10 s
	deepTasks    = 3000
	shallowTasks = 200
)

// row is one measured run (a line of the table): a fleet in which each device has one task.
type row struct {
	name          string
	baseline      bool // report-and-hope instead of the dispatcher
	via           simulator.Via
	tasks         int
	roundTrip     time.Duration // between devices and dispatcher
	notBefore     time.Duration // the time between queueing and start; 0 means that tasks start when they are queued
	silentShare   float64       // share of devices that fall silent for good after a grant
	slotsOverride int           // number of slots; 0 means the same as in all rows
	workOverride  time.Duration // mean work; 0 means the same as in all rows
}

func tableRows() []row {
	kinds := []row{
		{name: "report-and-hope", baseline: true, via: simulator.ViaPeriodic},
		{name: "push (MQTT)", via: simulator.ViaMQTT},
		{name: "long poll", via: simulator.ViaLongPoll},
		{name: "steered pollers", via: simulator.ViaHTTP},
		{name: "steered pollers, scheduled start", via: simulator.ViaHTTP, notBefore: period},
		{name: "strictly periodic pollers", via: simulator.ViaPeriodic},
		{name: "mixed, 2 % fall silent", via: mixedVia, silentShare: 0.02},
	}
	var rows []row
	for _, k := range kinds {
		for _, tasks := range []int{deepTasks, shallowTasks} {
			k.tasks = tasks
			rows = append(rows, k)
		}
	}
	for _, roundTrip := range []time.Duration{200 * time.Millisecond, time.Second} {
		rows = append(rows,
			row{name: "push (MQTT)", via: simulator.ViaMQTT, tasks: 1200, roundTrip: roundTrip},
			row{name: "long poll", via: simulator.ViaLongPoll, tasks: 1200, roundTrip: roundTrip})
	}
	return append(rows,
		row{name: "push (MQTT), 100 devices a slot", via: simulator.ViaMQTT, tasks: 100 * capacity},
		row{name: "steered pollers, 100 devices a slot", via: simulator.ViaHTTP, tasks: 100 * capacity},
		row{name: "push (MQTT), 10 slots", via: simulator.ViaMQTT, tasks: 500, slotsOverride: 10},
		row{name: "push (MQTT), 150 handoffs a second", via: simulator.ViaMQTT, tasks: deepTasks, workOverride: briefWork},
		row{name: "long poll, 150 handoffs a second", via: simulator.ViaLongPoll, tasks: deepTasks, workOverride: briefWork})
}

const mixedVia = simulator.ViaMQTT + "," + simulator.ViaLongPoll + "," + simulator.ViaHTTP

// title returns the name of a row, which is used in the table and for the flag -rows.
func (r row) title() string {
	title := fmt.Sprintf("%s, %d", r.name, r.tasks)
	if r.roundTrip > 0 {
		title += fmt.Sprintf(", %s away", r.roundTrip)
	}
	return title
}

// selectRows returns the rows whose title contains one of the words. In words, they are separated by "|". If words
// is "", it returns all rows.
func selectRows(rows []row, words string) []row {
	var some []row
	for _, r := range rows {
		for word := range strings.SplitSeq(words, "|") {
			if strings.Contains(r.title(), strings.TrimSpace(word)) {
				some = append(some, r)
				break
			}
		}
	}
	return some
}

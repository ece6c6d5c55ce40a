package e2e

import (
	"database/sql"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// apiSnapshot is the API's answer for a page at one position of the event log. The newest events were the same
// before and after the request.
type apiSnapshot struct {
	values      pageValues
	uncertainty time.Duration // how long the position may have lasted before and after the answer was read
}

// valueRange is the range of values that were observed for a number that changes without an event.
type valueRange struct{ lowest, highest float64 }

// screen is one page of the dashboard, with the answers of the API for it and the comparisons that were made so
// far.
type screen struct {
	name, path    string
	readValues    func(*replica) pageValues
	readEventless func(*replica) pageValues // values that change without an event; nil means none
	ignoresEvents bool                      // the page does not follow events

	lastRead       time.Time // when the API was last asked
	snapshots      map[string]apiSnapshot
	ranges         map[string]valueRange  // value ranges of those places whose values change without an event
	uncompared     map[string]observation // key: the way in which the page was loaded, and the moment
	shownInRanges  map[string][]string    // what pages showed at the places in ranges
	compared       map[string]bool        // key: the way in which the page was loaded, and the moment
	fittedCounts   map[string]int         // by place: how often a roughNumber was shown within its tolerance
	valuesCompared int                    // number of values compared in all moments
	differences    []string
}

// observation has the values that a page showed, and the moment (position of the event log) that the page named.
type observation struct {
	screen  *screen
	source  string // "live", or "plain" for a page that was loaded again
	Moment  string
	Numbers map[string]string
}

func newScreen(name, path string, readValues func(*replica) pageValues) *screen {
	return &screen{
		name: name, path: path, readValues: readValues, snapshots: map[string]apiSnapshot{}, ranges: map[string]valueRange{}, uncompared: map[string]observation{},
		shownInRanges: map[string][]string{}, compared: map[string]bool{}, fittedCounts: map[string]int{},
	}
}

// withoutEvents marks the screen as a page that is not updated after events.
func (s *screen) withoutEvents() *screen {
	s.ignoresEvents = true
	return s
}

// withEventless adds to the screen the values that change without an event.
func (s *screen) withEventless(readEventless func(*replica) pageValues) *screen {
	s.readEventless = readEventless
	return s
}

// eventPosition returns the present position of the event log, in the form in which pages show it.
func (x *experiment) eventPosition() (name string) {
	x.t.Helper()
	err := x.db.QueryRowContext(x.t.Context(), `SELECT max(id) || '.' || min(id) FROM (SELECT id FROM events ORDER BY id DESC LIMIT 64) AS newest`).Scan(&name)
	must.Succeed(x.t, err)
	return name
}

// readScreen asks the API for the values of the page. It stores the answer only if no event happened during the
// request.
func (x *experiment) readScreen(s *screen, target *replica) {
	x.t.Helper()
	before, since := x.eventPosition(), s.lastRead
	answer := s.readValues(target)
	s.lastRead = time.Now()
	after := x.eventPosition()
	if s.readEventless != nil {
		maps.Copy(answer, s.readEventless(target))
	}
	for place, value := range answer {
		if own, is := eventlessNumber(place, value); is {
			s.widenRange(place, own)
			delete(answer, place)
		}
	}
	if after == before {
		s.snapshots[before] = apiSnapshot{values: answer, uncertainty: time.Since(since)}
	}
}

// widenRange extends the range of the values at this place of the page so that it includes value.
func (s *screen) widenRange(place string, value float64) {
	known, there := s.ranges[place]
	if !there {
		known = valueRange{math.Inf(1), math.Inf(-1)}
	}
	s.ranges[place] = valueRange{min(known.lowest, value), max(known.highest, value)}
}

// eventlessNumber reports whether the value at this place of a page changes without an event, such as data in Redis
// and last-seen times of devices, replicas and passes. It also returns the value as a number.
func eventlessNumber(place string, value any) (number float64, is bool) {
	last := place[strings.LastIndex(place, "/")+1:]
	switch {
	case slices.Contains([]string{"reserved", "free", "Last seen", "Slots last taken back", "Last"}, last):
	default:
		return 0, false
	}
	return parseNumber(fmt.Sprint(value)), true
}

// parseNumber parses the number or the time at the beginning of a text. It returns a time in seconds.
func parseNumber(text string) float64 {
	word, _, _ := strings.Cut(text, " ")
	if at, err := time.Parse(time.RFC3339, word); err == nil {
		return float64(at.UnixMilli()) / 1000
	}
	n, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return math.NaN()
	}
	return n
}

// compareObservation compares an observation of the page with the API's answer at the same moment.
func (s *screen) compareObservation(o observation) {
	key := o.source + " " + o.Moment
	if s.compared[key] {
		return
	}
	r, known := s.snapshots[o.Moment]
	if !known {
		s.uncompared[key] = o
		return
	}
	delete(s.uncompared, key)
	s.compared[key] = true
	s.valuesCompared += len(r.values)
	for place, shown := range o.Numbers {
		if shown == "reserved" { // Redis decides which slots are reserved, without an event
			o.Numbers[place] = "free"
		}
		if _, own := s.ranges[place]; own {
			s.shownInRanges[place] = append(s.shownInRanges[place], shown)
		}
	}
	wanted := pageValues{}
	for place, want := range r.values {
		switch value := want.(type) {
		case nearNumber:
			if r.uncertainty < 2*time.Second && !(nearNumber{value.value, 3 * value.tolerance}).matches(o.Numbers[place]) {
				s.differences = append(s.differences, fmt.Sprintf("%s: %s is %q, want about %v", key, place, o.Numbers[place], value))
			}
		case roughNumber:
			if nearNumber(value).matches(o.Numbers[place]) {
				s.fittedCounts[place]++
			}
		default:
			wanted[place] = want
		}
	}
	for _, d := range wanted.differences(o.Numbers) {
		s.differences = append(s.differences, key+": "+d)
	}
}

// comparePending compares those observations for which the API's answer was missing so far.
func (s *screen) comparePending() {
	for _, o := range maps.Clone(s.uncompared) {
		s.compareObservation(o)
	}
}

// comparedMoments returns how many moments were compared: of pages that are updated live, and of pages that were
// loaded again.
func (s *screen) comparedMoments() (live, plain int) {
	for key := range s.compared {
		if strings.HasPrefix(key, "live ") {
			live++
		} else {
			plain++
		}
	}
	return live, plain
}

// reportDifferences asks the API for the last time and reports all differences.
func (s *screen) reportDifferences(x *experiment) {
	x.t.Helper()
	for place, shown := range s.shownInRanges {
		for _, text := range shown {
			n, known := parseNumber(text), s.ranges[place]
			if n > 1e9 { // a time: the metric has whole seconds
				n = math.Floor(n)
			}
			if n < math.Floor(known.lowest) || n > known.highest {
				s.differences = append(s.differences, fmt.Sprintf("%s was %q, never said: %v", place, text, known))
			}
		}
	}
	live, plain := s.comparedMoments()
	x.t.Logf("%s: %d moments live, %d read anew, %d numbers; by their own clocks %d; about %v", s.name, live, plain, s.valuesCompared, len(s.ranges), s.fittedCounts)
	if len(s.differences) > 0 {
		x.t.Errorf("%s: %s", s.name, strings.Join(s.differences[:min(len(s.differences), 12)], "\n"))
	}
}

// roughNumber is a number that a page may show a little earlier or later than the API. If the machine stalls, it
// may differ by more.
type roughNumber nearNumber

// addTallyValues adds the counts of the last minute as the head of the pool's page shows them. They come from the
// events in the ledger, and from the counts (tallies) that each replica stores in the ledger.
func (x *experiment) addTallyValues(values pageValues) {
	x.t.Helper()
	var granted, reaped, whole int
	if err := x.db.QueryRowContext(x.t.Context(), `
		SELECT count(*) FILTER (WHERE kind = 'task.granted' AND at > now() - interval '57 s'), count(*) FILTER (WHERE kind = 'task.lapsed' AND at > now() - interval '57 s'),
			count(*) FILTER (WHERE kind = 'task.granted') FROM events WHERE pool = $1`, pool).Scan(&granted, &reaped, &whole); err != nil {
		x.t.Fatal(err)
	}
	var conflicts, drift sql.NullInt64
	if err := x.db.QueryRowContext(x.t.Context(), `
		SELECT sum((tallies::json -> $1 ->> 'conflicts')::bigint), sum((tallies::json -> $1 ->> 'drift')::bigint) FROM replicas`, pool).Scan(&conflicts, &drift); err != nil {
		x.t.Fatal(err)
	}
	values["pool-head/granted/min"] = roughNumber{float64(granted), 5 + float64(granted)/10}
	values["pool-head/taken back/min"] = roughNumber{float64(reaped), 0}
	for name, n := range map[string]int64{"conflicts": conflicts.Int64, "slots repaired": drift.Int64} {
		if n > 0 {
			values["pool-head/"+name] = roughNumber{float64(n), 0}
		}
	}
}

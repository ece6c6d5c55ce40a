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
)

// record is the answer of the API about a page at a position of the event log: the newest events were the same before and after the
// request.
type record struct {
	said   said
	within time.Duration // how long the position may have lasted before and after the answer was read
}

// between is the range of the observed values of a number that changes without an event.
type between struct{ least, most float64 }

// screen is a page of the dashboard with the API's answers about it, and the comparisons so far.
type screen struct {
	name, path string
	said       func(*replica) said
	beside     func(*replica) said // values that change without an event; nil means none
	still      bool                // the page does not follow events

	last     time.Time // when the API was last asked
	records  map[string]record
	ranges   map[string]between     // of places whose values change without an event
	pending  map[string]observation // key: way and moment
	loose    map[string][]string    // what pages showed at the places in ranges
	compared map[string]bool        // key: way and moment
	fitted   map[string]int         // by place: how often a usual value was shown within its tolerance
	numbers  int                    // number of values compared in all moments
	wrong    []string
}

// observation holds the values that a page showed, and the moment that the page named.
type observation struct {
	screen  *screen
	way     string // "live", or "plain" for a page that was loaded again
	Moment  string
	Numbers map[string]string
}

func newScreen(name, path string, said func(*replica) said) *screen {
	return &screen{
		name: name, path: path, said: said, records: map[string]record{}, ranges: map[string]between{}, pending: map[string]observation{},
		loose: map[string][]string{}, compared: map[string]bool{}, fitted: map[string]int{},
	}
}

// thatStandsStill marks the screen as a page that does not follow events.
func (s *screen) thatStandsStill() *screen {
	s.still = true
	return s
}

// with adds values that change without an event.
func (s *screen) with(beside func(*replica) said) *screen {
	s.beside = beside
	return s
}

// moment returns the position of the event log, in the form that pages use.
func (x *experiment) moment() (name string) {
	x.t.Helper()
	err := x.db.QueryRowContext(x.t.Context(), `SELECT max(id) || '.' || min(id) FROM (SELECT id FROM events ORDER BY id DESC LIMIT 64) AS newest`).Scan(&name)
	if err != nil {
		x.t.Fatal(err)
	}
	return name
}

// listen asks the API, and stores the answer if there was no event during the request.
func (x *experiment) listen(s *screen, at *replica) {
	x.t.Helper()
	before, since := x.moment(), s.last
	answer := s.said(at)
	s.last = time.Now()
	after := x.moment()
	if s.beside != nil {
		maps.Copy(answer, s.beside(at))
	}
	for place, value := range answer {
		if own, is := ownClock(place, value); is {
			s.widen(place, own)
			delete(answer, place)
		}
	}
	if after == before {
		s.records[before] = record{said: answer, within: time.Since(since)}
	}
}

// widen extends the range of a place by a value.
func (s *screen) widen(place string, value float64) {
	known, there := s.ranges[place]
	if !there {
		known = between{math.Inf(1), math.Inf(-1)}
	}
	s.ranges[place] = between{min(known.least, value), max(known.most, value)}
}

// ownClock reports whether a value changes without an event: data in Redis, and last-seen times of devices, replicas and passes. It also
// returns the value as a number.
func ownClock(place string, value any) (number float64, is bool) {
	last := place[strings.LastIndex(place, "/")+1:]
	switch {
	case slices.Contains([]string{"reserved", "free", "Last seen", "Slots last taken back", "Last"}, last):
	default:
		return 0, false
	}
	return numeric(fmt.Sprint(value)), true
}

// numeric parses the number or the time at the start of a text. A time is returned in seconds.
func numeric(text string) float64 {
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

// settle compares an observation with the API's answer at the same moment.
func (s *screen) settle(o observation) {
	key := o.way + " " + o.Moment
	if s.compared[key] {
		return
	}
	r, known := s.records[o.Moment]
	if !known {
		s.pending[key] = o
		return
	}
	delete(s.pending, key)
	s.compared[key] = true
	s.numbers += len(r.said)
	for place, shown := range o.Numbers {
		if shown == "reserved" { // Redis decides which slots are reserved, without an event
			o.Numbers[place] = "free"
		}
		if _, own := s.ranges[place]; own {
			s.loose[place] = append(s.loose[place], shown)
		}
	}
	wanted := said{}
	for place, want := range r.said {
		switch value := want.(type) {
		case near:
			if r.within < 2*time.Second && !(near{value.value, 3 * value.within}).is(o.Numbers[place]) {
				s.wrong = append(s.wrong, fmt.Sprintf("%s: %s is %q, want about %v", key, place, o.Numbers[place], value))
			}
		case usual:
			if near(value).is(o.Numbers[place]) {
				s.fitted[place]++
			}
		default:
			wanted[place] = want
		}
	}
	for _, d := range wanted.differs(o.Numbers) {
		s.wrong = append(s.wrong, key+": "+d)
	}
}

// settleAll compares the observations that wait for an answer of the API.
func (s *screen) settleAll() {
	for _, o := range maps.Clone(s.pending) {
		s.settle(o)
	}
}

// ways returns the number of compared moments of live pages and of pages that were loaded again.
func (s *screen) ways() (live, plain int) {
	for key := range s.compared {
		if strings.HasPrefix(key, "live ") {
			live++
		} else {
			plain++
		}
	}
	return live, plain
}

// judge reports the differences, after the API was asked for the last time.
func (s *screen) judge(x *experiment) {
	x.t.Helper()
	for place, shown := range s.loose {
		for _, text := range shown {
			n, known := numeric(text), s.ranges[place]
			if n > 1e9 { // a metric has whole seconds
				n = math.Floor(n)
			}
			if n < math.Floor(known.least) || n > known.most {
				s.wrong = append(s.wrong, fmt.Sprintf("%s was %q, never said: %v", place, text, known))
			}
		}
	}
	live, plain := s.ways()
	x.t.Logf("%s: %d moments live, %d read anew, %d numbers; by their own clocks %d; about %v", s.name, live, plain, s.numbers, len(s.ranges), s.fitted)
	if len(s.wrong) > 0 {
		x.t.Errorf("%s: %s", s.name, strings.Join(s.wrong[:min(len(s.wrong), 12)], "\n"))
	}
}

// usual is a number that a page may show a little earlier or later than the API. After a stall of the machine, it may differ by more.
type usual near

// talliesSaid adds the counts of the last minute from the ledger's log and the replicas' tallies, as the head of the pool's page shows
// them.
func (x *experiment) talliesSaid(s said) {
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
	s["pool-head/granted/min"] = usual{float64(granted), 5 + float64(granted)/10}
	s["pool-head/taken back/min"] = usual{float64(reaped), 0}
	for name, n := range map[string]int64{"conflicts": conflicts.Int64, "disagreements": drift.Int64} {
		if n > 0 {
			s["pool-head/"+name] = usual{float64(n), 0}
		}
	}
}

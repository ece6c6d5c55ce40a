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

// A record is what the API said of a page while the ledger stood at a moment:
// the newest events were the same before and after.
type record struct {
	said   said
	within time.Duration // how long the moment may have lasted until it was read, and after
}

// between is what a number was at least and at most, of those that change
// without an event, each by its own clock.
type between struct{ least, most float64 }

// A screen is a page of the dashboard with what the API says of it, and what
// was compared.
type screen struct {
	name, path string
	said       func(*replica) said
	beside     func(*replica) said // what has a clock of its own; nil: nothing
	still      bool                // it does not follow what happens

	last     time.Time // when the API was asked
	records  map[string]record
	ranges   map[string]between     // of places with a clock of their own
	pending  map[string]observation // by the way it was seen, and moment
	loose    map[string][]string    // what pages showed at those places
	compared map[string]bool        // by way and moment
	fitted   map[string]int         // by place, how often what is nearly known was nearly shown
	numbers  int                    // compared, of all moments
	wrong    []string
}

// An observation is what a page showed, and of which moment it said that was.
type observation struct {
	screen  *screen
	way     string // live, or plain: read anew
	Moment  string
	Numbers map[string]string
}

func newScreen(name, path string, said func(*replica) said) *screen {
	return &screen{
		name: name, path: path, said: said, records: map[string]record{}, ranges: map[string]between{}, pending: map[string]observation{},
		loose: map[string][]string{}, compared: map[string]bool{}, fitted: map[string]int{},
	}
}

// thatStandsStill is one that does not follow.
func (s *screen) thatStandsStill() *screen {
	s.still = true
	return s
}

// with is the screen with what has a clock of its own.
func (s *screen) with(beside func(*replica) said) *screen {
	s.beside = beside
	return s
}

// moment names where the log of events stands, as pages do.
func (x *experiment) moment() (name string) {
	x.t.Helper()
	err := x.db.QueryRowContext(x.t.Context(), `SELECT max(id) || '.' || min(id) FROM (SELECT id FROM events ORDER BY id DESC LIMIT 64) AS newest`).Scan(&name)
	if err != nil {
		x.t.Fatal(err)
	}
	return name
}

// listen asks the API, and keeps the answer if nothing happened meanwhile.
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

// widen notes one more value that was said.
func (s *screen) widen(place string, value float64) {
	known, there := s.ranges[place]
	if !there {
		known = between{math.Inf(1), math.Inf(-1)}
	}
	s.ranges[place] = between{min(known.least, value), max(known.most, value)}
}

// ownClock says whether a number changes without an event: what Redis keeps,
// and what was seen of devices, replicas and passes.
func ownClock(place string, value any) (number float64, is bool) {
	last := place[strings.LastIndex(place, "/")+1:]
	switch {
	case slices.Contains([]string{"reserved", "free", "Last seen", "Slots last taken back", "Last"}, last):
	default:
		return 0, false
	}
	return numeric(fmt.Sprint(value)), true
}

// numeric reads what a text begins with, or a time in seconds.
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

// settle compares what was observed with what was said of the same moment.
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
		if shown == "reserved" { // Redis says which, by its own clock
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

// settleAll goes through what waits for its record.
func (s *screen) settleAll() {
	for _, o := range maps.Clone(s.pending) {
		s.settle(o)
	}
}

// ways counts the moments that were compared, live and read anew.
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

// judge says what was found, once the API was asked for the last time.
func (s *screen) judge(x *experiment) {
	x.t.Helper()
	for place, shown := range s.loose {
		for _, text := range shown {
			n, known := numeric(text), s.ranges[place]
			if n > 1e9 { // a metric's seconds are whole ones
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

// usual is a number that a page shows a little later or earlier than it is
// said; on a machine that stands still for a while, much later.
type usual near

// talliesSaid adds what the ledger's log and the replicas' tallies say of the
// last minute, as the head of the pool's page shows it.
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

package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	lanesShown    = 60   // slots of one part of the time line
	holdingsDrawn = 600  // the latest of them: some 100 kB of page
	lanesWide     = 1000 // units of its drawing
	leastWide     = 0.6  // what is shorter can be seen, too
	endWide       = 4.0  // of the mark of a slot that was taken back or released
)

// holding of a slot.
type holding = operators.Holding

// pastSlots are the latest holdings of some slots.
type pastSlots struct {
	pool  string
	span  string // the range that was asked for
	first int    // slot
	now   time.Time
	list  []holding
	more  bool // there are earlier ones in the range
}

// lanes are a time line: a row for each slot.
type lanes struct {
	Rows       []lane
	From, To   time.Time
	Times      []tick
	Cut        int // only so many holdings are drawn; 0: all
	Asked      time.Duration
	Span       time.Duration // of what is drawn
	Below, Top string        // pages of lower and higher slots; empty: none
}

// lane is a slot over time.
type lane struct {
	Slot int
	Path string // of the page of the slot
	Bars []stay
}

// stay is one holding, in units of the drawing.
type stay struct {
	X, Width float64
	End      float64 // where the mark begins
	Mark     mark
	How      string // lapsed or released: marked; else empty
	Title    string
}

// spanOfLanes is how far back a time line reaches: a day at most.
func spanOfLanes(asked string) time.Duration {
	if asked == "1h" {
		return time.Hour
	}
	return 24 * time.Hour
}

// past reads the holdings of the slots that a page asks for.
func (p *poolPages) past(r *http.Request, pool, asked string) (pastSlots, error) {
	first, err := strconv.Atoi(r.URL.Query().Get("from_slot"))
	if err != nil || first < 0 {
		first = 0
	}
	back := spanOfLanes(asked)
	return p.lanes.read(r.Context(), fmt.Sprint(pool, " ", asked, " ", first), p.now(), func(ctx context.Context) (pastSlots, error) {
		s := pastSlots{pool: pool, span: asked, first: first, now: p.now()}
		var page operators.HoldingList
		err := p.api.get(r.WithContext(ctx), operators.Path("pools", pool, "history"), url.Values{
			"slot": {fmt.Sprintf("%d-%d", min(first, highestSlot), min(first+lanesShown-1, highestSlot))}, "page_size": {strconv.Itoa(holdingsDrawn)},
			"from": {s.now.Add(-back).UTC().Format(time.RFC3339Nano)},
		}, &page)
		s.list, s.more = page.History, page.NextPageToken != ""
		return s, err
	})
}

const (
	highestSlot = 9999
	lanesEvery  = 15 * time.Second // a time line is read anew
)

// lanesOf draws holdings. Where there are too many, it draws the time of the latest.
func lanesOf(s pastSlots, marks batchMarks, cells []cell) lanes {
	l := lanes{To: s.now, Asked: spanOfLanes(s.span)}
	l.From = l.To.Add(-l.Asked)
	if s.more && len(s.list) > 0 {
		l.Cut = len(s.list)
		if last := s.list[len(s.list)-1].Ended; last != nil {
			l.From = last.Time
		}
	}
	l.Span = max(l.To.Sub(l.From), time.Second)
	l.Times = timeTicks(l.To, l.Span)
	l.rows(s, cells)
	for _, h := range s.list {
		if i, found := slices.BinarySearchFunc(l.Rows, h.Slot, func(row lane, slot int) int { return cmp.Compare(row.Slot, slot) }); found {
			l.Rows[i].Bars = append(l.Rows[i].Bars, l.stay(h, marks))
		}
	}
	for _, row := range l.Rows {
		slices.Reverse(row.Bars) // oldest first
	}
	return l
}

// rows are the slots of the pool and those that were held.
func (l *lanes) rows(s pastSlots, cells []cell) {
	slots := map[int]bool{}
	higher := false
	for _, c := range cells {
		slots[c.Slot] = true
	}
	for _, h := range s.list {
		slots[h.Slot] = true
	}
	for slot := range slots {
		if slot >= s.first && slot < s.first+lanesShown {
			l.Rows = append(l.Rows, lane{Slot: slot, Path: fmt.Sprintf("%s/slots/%d", poolPath(s.pool), slot)})
		}
		higher = higher || slot >= s.first+lanesShown
	}
	slices.SortFunc(l.Rows, func(a, b lane) int { return cmp.Compare(a.Slot, b.Slot) })
	part := func(first int) string {
		return fmt.Sprintf("%s?range=%s&from_slot=%d#lanes", poolPath(s.pool), s.span, first)
	}
	if s.first > 0 {
		l.Below = part(max(0, s.first-lanesShown))
	}
	if higher {
		l.Top = part(s.first + lanesShown)
	}
}

func (l *lanes) stay(h holding, marks batchMarks) stay {
	x := func(t time.Time) float64 {
		return max(0, min(lanesWide, lanesWide*float64(t.Sub(l.From))/float64(l.Span)))
	}
	ended, how := l.To, "holds it"
	if h.Ended != nil {
		ended, how = h.Ended.Time, endings()[h.EndedBy]
	}
	s := stay{X: x(h.Granted.Time), Mark: marks.of(h.Batch), Title: fmt.Sprintf("Slot %d: %s, batch %d, task %d, from %s to %s, %s",
		h.Slot, h.Device, h.Batch, h.Task, clockOf(h.Granted.Time), clockOf(ended), how)}
	if s.Width = x(ended) - s.X; s.Width < leastWide {
		s.X, s.Width = max(0, s.X+s.Width-leastWide), leastWide
	}
	if h.EndedBy == operators.Lapsed || h.EndedBy == operators.Released {
		s.How, s.End = h.EndedBy, max(0, s.X+s.Width-endWide)
	}
	return s
}

func clockOf(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// endings says how a holding ended, for people.
func endings() map[string]string {
	return map[string]string{
		"": "holds it", "succeeded": "succeeded", "failed": "failed", "rejected": "rejected by the device", "returned": "returned by the device",
		operators.Lapsed: "lease ended, taken back", operators.Released: "released by force",
	}
}

// mark tells the batches of a page apart, by colour, pattern and letter.
type mark int

// marksThere are so many; -1: no batch.
const marksThere = 8

// Letter of the mark.
func (m mark) Letter() string {
	if m < 0 {
		return ""
	}
	return string(rune('A' + int(m)))
}

// batchMarks are those of a page.
type batchMarks []batchMark

type batchMark struct {
	Batch int64
	Mark  mark
}

// marksOf gives each batch the mark of its number, or the next that is free: so it stays
// while batches come and go. Of more batches than marks several have the same.
func marksOf(slots []operators.Slot, past []holding) batchMarks {
	var batches []int64
	for _, s := range slots {
		batches = append(batches, s.Batch)
	}
	for _, h := range past {
		batches = append(batches, h.Batch)
	}
	slices.Sort(batches)
	var marks batchMarks
	used := map[mark]bool{}
	for _, id := range slices.Compact(batches) {
		if id == 0 {
			continue
		}
		m := mark(id % marksThere)
		for n := 0; used[m] && n < marksThere; n++ {
			m = (m + 1) % marksThere
		}
		used[m] = true
		marks = append(marks, batchMark{id, m})
	}
	return marks
}

func (m batchMarks) of(batch int64) mark {
	if i, found := slices.BinarySearchFunc(m, batch, func(one batchMark, id int64) int { return cmp.Compare(one.Batch, id) }); found {
		return m[i].Mark
	}
	return -1
}

// slotShown is how many holdings a page of a slot lists.
const slotShown = 50

// slot shows who holds a slot, and who held it before.
func (p *poolPages) slot(r *http.Request) (page, error) {
	name, number := r.PathValue("id"), r.PathValue("slot")
	pager := pagerOf(r, url.Values{"slot": {number}})
	var list operators.HoldingList
	if err := p.api.get(r, operators.Path("pools", name, "history"), pager.query(slotShown), &list); err != nil {
		return page{}, err
	}
	pager.filters = nil
	return page{title: fmt.Sprintf("Slot %s of %s", number, name), section: "pools", template: "slot", data: map[string]any{
		"Pool": name, "Slot": number, "History": list.History, "Next": pager.next(list.NextPageToken), "First": pager.first(), "Endings": endings(), "Admin": p.may(r, "admin"),
	}}, nil
}

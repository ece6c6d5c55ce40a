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
	lanesShown    = 60   // slots in one part of the time line
	holdingsDrawn = 600  // maximum number of holdings, the latest ones; they need about 100 kB of the page
	lanesWide     = 1000 // width of the drawing in its units
	leastWide     = 0.6  // minimum width of a holding, so that a short one stays visible
	endWide       = 4.0  // width of the mark at the end of a holding that lapsed or was released
)

// holding is the time in which one device held a slot.
type holding = operators.Holding

// pastSlots holds the latest holdings of some slots.
type pastSlots struct {
	pool  string
	span  string // the requested range
	first int    // lowest slot
	now   time.Time
	list  []holding
	more  bool // the range has earlier holdings that are not in list
}

// lanes is a time line with a row for each slot.
type lanes struct {
	Rows       []lane
	From, To   time.Time
	Times      []tick
	Cut        int // number of holdings that are drawn; 0 means that all are drawn
	Asked      time.Duration
	Span       time.Duration // length of the time that is drawn
	Below, Top string        // paths of the pages with the lower and the higher slots; empty if there are none
}

// lane is the time line of one slot.
type lane struct {
	Slot int
	Path string // path of the page of the slot
	Bars []stay
}

// stay is one holding, in units of the drawing.
type stay struct {
	X, Width float64
	End      float64 // x position at which the mark of a lapsed or released holding begins
	Mark     mark
	How      string // lapsed or released, which are marked; otherwise empty
	Title    string
}

// spanOfLanes returns how far back a time line reaches, at most a day.
func spanOfLanes(asked string) time.Duration {
	if asked == "1h" {
		return time.Hour
	}
	return 24 * time.Hour
}

// past reads the holdings of the slots that the request selects.
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
	lanesEvery  = 15 * time.Second // interval at which a time line is read again
)

// lanesOf draws holdings. If there are too many, it draws only the time that the latest holdings cover.
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

// rows adds a row for each slot of the pool and for each slot that was held, within the part that is
// shown.
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

// endings returns the words for each way in which a holding ends.
func endings() map[string]string {
	return map[string]string{
		"": "holds it", "succeeded": "succeeded", "failed": "failed", "rejected": "rejected by the device", "returned": "returned by the device",
		operators.Lapsed: "lease ended, taken back", operators.Released: "released by force",
	}
}

// mark distinguishes the batches of a page by colour, pattern and letter. A mark of -1 means no batch.
type mark int

// marksThere is the number of marks.
const marksThere = 8

// Letter returns the letter of the mark. It is empty for no batch.
func (m mark) Letter() string {
	if m < 0 {
		return ""
	}
	return string(rune('A' + int(m)))
}

// batchMarks holds the marks of the batches of a page, sorted by batch.
type batchMarks []batchMark

type batchMark struct {
	Batch int64
	Mark  mark
}

// marksOf gives each batch the mark that follows from its id, or the next free mark, so that the mark
// of a batch usually stays the same while other batches come and go. If there are more batches than
// marks, several batches share a mark.
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

// slotShown is the number of holdings on the page of a slot.
const slotShown = 50

// slot returns the page that shows the holder of a slot and its earlier holders.
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

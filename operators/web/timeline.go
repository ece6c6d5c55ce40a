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

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	timelineSlots    = 60   // slots in one part of the time line
	maxHoldingsDrawn = 600  // maximum number of holdings, the latest ones; they need about 100 kB of the page
	timelineWidth    = 1000 // width of the drawing in its units
	minBarWidth      = 0.6  // minimum width of a holding, so that a short one stays visible
	endMarkWidth     = 4.0  // width of the mark at the end of a holding that lapsed or was released
)

// holding is the time in which one device held a slot.
type holding = operators.Holding

// slotHoldings holds the latest holdings of some slots.
type slotHoldings struct {
	pool       string
	timeRange  timeRange // the requested range
	firstSlot  int       // lowest slot
	now        time.Time
	holdings   []holding
	hasEarlier bool // the range has earlier holdings that are not in holdings
}

// slotTimeline is a time line with a row for each slot. Templates and addresses call a time line "lanes".
// These lanes are not the urgent lane of batches.
type slotTimeline struct {
	Rows       []timelineRow
	From, To   time.Time
	Times      []axisTick
	Cut        int           // number of holdings that are drawn; 0 means that all are drawn
	Asked      time.Duration // length of the range that was requested
	Span       time.Duration // length of the time that is drawn
	Below, Top string        // paths of the pages with the lower and the higher slots; empty if there are none
}

type timelineRow struct {
	Slot int
	Path string // path of the page of the slot
	Bars []holdingBar
}

// holdingBar is one holding, in units of the drawing.
type holdingBar struct {
	X, Width float64
	End      float64 // x position at which the mark of a lapsed or released holding begins
	Mark     mark
	How      string // lapsed or released, which are marked; otherwise empty
	Title    string
}

// maxTimelineSpan is the longest time that a time line shows.
const maxTimelineSpan = 24 * time.Hour

// readHoldings reads the holdings (periods in which a device held a slot) of a part of a pool's slots in span. The request selects the
// first slot of this part.
func (p *poolPages) readHoldings(r *http.Request, pool string, span timeRange) (slotHoldings, error) {
	first, err := strconv.Atoi(r.URL.Query().Get("from_slot"))
	if err != nil || first < 0 {
		first = 0
	}
	return p.holdingsCache.getOrRead(r.Context(), fmt.Sprint(pool, " ", span.name, " ", first), p.now(), func(ctx context.Context) (slotHoldings, error) {
		s := slotHoldings{pool: pool, timeRange: span, firstSlot: first, now: p.now()}
		var page operators.HoldingList
		err := p.api.get(r.WithContext(ctx), operators.Path("pools", pool, "history"), url.Values{
			"slot": {fmt.Sprintf("%d-%d", min(first, highestSlot), min(first+timelineSlots-1, highestSlot))}, "page_size": {strconv.Itoa(maxHoldingsDrawn)},
			"from": {s.now.Add(-min(span.length, maxTimelineSpan)).UTC().Format(time.RFC3339Nano)},
		}, &page)
		s.holdings, s.hasEarlier = page.History, page.NextPageToken != ""
		return s, err
	})
}

const (
	highestSlot       = 9999
	timelineReadEvery = 15 * time.Second // interval at which the page reads a time line again
)

// newTimeline draws the holdings in slots (periods in which a device held a slot). marks has the marks of the batches, and cells has the
// present state of the slots. If the range has more than maxHoldingsDrawn holdings, it draws only the time that the latest of them cover.
func newTimeline(slots slotHoldings, marks batchMarks, cells []slotCell) slotTimeline {
	l := slotTimeline{To: slots.now, Asked: min(slots.timeRange.length, maxTimelineSpan)}
	l.From = l.To.Add(-l.Asked)
	if slots.hasEarlier && len(slots.holdings) > 0 {
		l.Cut = len(slots.holdings)
		if last := slots.holdings[len(slots.holdings)-1].Ended; last != nil {
			l.From = last.Time
		}
	}
	l.Span = max(l.To.Sub(l.From), time.Second)
	l.Times = timeTicks(l.To, l.Span)
	l.addSlotRows(slots, cells)
	for _, h := range slots.holdings {
		if i, found := slices.BinarySearchFunc(l.Rows, h.Slot, func(row timelineRow, slot int) int { return cmp.Compare(row.Slot, slot) }); found {
			l.Rows[i].Bars = append(l.Rows[i].Bars, l.newBar(h, marks))
		}
	}
	for _, row := range l.Rows {
		slices.Reverse(row.Bars) // oldest first
	}
	return l
}

// addSlotRows adds a row for each slot of the pool (cells) and for each slot that was held. It leaves out slots that are not in the part of the
// pool that the page shows.
func (l *slotTimeline) addSlotRows(held slotHoldings, cells []slotCell) {
	slots := map[int]bool{}
	higher := false
	for _, c := range cells {
		slots[c.Slot] = true
	}
	for _, h := range held.holdings {
		slots[h.Slot] = true
	}
	for slot := range slots {
		if slot >= held.firstSlot && slot < held.firstSlot+timelineSlots {
			l.Rows = append(l.Rows, timelineRow{Slot: slot, Path: fmt.Sprintf("%s/slots/%d", poolPath(held.pool), slot)})
		}
		higher = higher || slot >= held.firstSlot+timelineSlots
	}
	slices.SortFunc(l.Rows, func(a, b timelineRow) int { return cmp.Compare(a.Slot, b.Slot) })
	partPath := func(first int) string {
		return fmt.Sprintf("%s?range=%s&from_slot=%d#lanes", poolPath(held.pool), held.timeRange.name, first)
	}
	if held.firstSlot > 0 {
		l.Below = partPath(max(0, held.firstSlot-timelineSlots))
	}
	if higher {
		l.Top = partPath(held.firstSlot + timelineSlots)
	}
}

// newBar returns the bar of one holding (a period in which a device held a slot).
func (l *slotTimeline) newBar(held holding, marks batchMarks) holdingBar {
	x := func(t time.Time) float64 {
		return max(0, min(timelineWidth, timelineWidth*float64(t.Sub(l.From))/float64(l.Span)))
	}
	ended, how := l.To, "holds it"
	if held.Ended != nil {
		ended, how = held.Ended.Time, endingTexts()[held.EndedBy]
	}
	s := holdingBar{X: x(held.Granted.Time), Mark: marks.markOf(held.Batch), Title: fmt.Sprintf("Slot %d: %s, batch %d, task %d, from %s to %s, %s",
		held.Slot, held.Device, held.Batch, held.Task, decision.FormatTime(held.Granted.Time), decision.FormatTime(ended), how)}
	if s.Width = x(ended) - s.X; s.Width < minBarWidth {
		s.X, s.Width = max(0, s.X+s.Width-minBarWidth), minBarWidth
	}
	if held.EndedBy == operators.EndedByLapse || held.EndedBy == operators.EndedByRelease {
		s.How, s.End = held.EndedBy, max(0, s.X+s.Width-endMarkWidth)
	}
	return s
}

// endingTexts returns the text that a page shows for each ending of a holding.
func endingTexts() (textByEnding map[string]string) {
	return map[string]string{
		"": "holds it", "succeeded": "succeeded", "failed": "failed", "rejected": "rejected by the device", "returned": "returned by the device",
		operators.EndedByLapse: "lease ended, taken back", operators.EndedByRelease: "released by force",
	}
}

// mark distinguishes the batches of a page by colour, pattern and letter. A mark of -1 means no batch.
type mark int

const markCount = 8

// Letter returns the letter that the chart shows for the batch of this mark. It is empty if the mark belongs to no batch.
func (m mark) Letter() string {
	if m < 0 {
		return ""
	}
	return string(rune('A' + int(m)))
}

// batchMarks holds the marks (colour, pattern and letter) of the batches of a page, sorted by batch.
type batchMarks []batchMark

// batchMark is a batch with its mark (a colour, a pattern and a letter).
type batchMark struct {
	Batch int64
	Mark  mark
}

// assignMarks gives a mark (a colour, a pattern and a letter) to each batch of slots and of holdings. The mark is the batch's id modulo
// markCount or, if another batch has that mark, the next free one. So the mark of a batch usually stays the same while other batches come
// and go. If there are more batches than marks, several batches share a mark.
func assignMarks(slots []operators.Slot, holdings []holding) batchMarks {
	var batches []int64
	for _, s := range slots {
		batches = append(batches, s.Batch)
	}
	for _, h := range holdings {
		batches = append(batches, h.Batch)
	}
	slices.Sort(batches)
	var marks batchMarks
	used := map[mark]bool{}
	for _, id := range slices.Compact(batches) {
		if id == 0 {
			continue
		}
		m := mark(id % markCount)
		for n := 0; used[m] && n < markCount; n++ {
			m = (m + 1) % markCount
		}
		used[m] = true
		marks = append(marks, batchMark{id, m})
	}
	return marks
}

// markOf returns the mark of a batch, or -1 if it has none.
func (m batchMarks) markOf(batch int64) mark {
	if i, found := slices.BinarySearchFunc(m, batch, func(one batchMark, id int64) int { return cmp.Compare(one.Batch, id) }); found {
		return m[i].Mark
	}
	return -1
}

// holdingsPerPage is the number of holdings on the page of a slot.
const holdingsPerPage = 50

// loadSlotPage returns the page that shows the holder of a slot and its earlier holders.
func (p *poolPages) loadSlotPage(r *http.Request) (page, error) {
	name, number := r.PathValue("id"), r.PathValue("slot")
	pager := newPager(r, url.Values{"slot": {number}})
	var list operators.HoldingList
	if err := p.api.get(r, operators.Path("pools", name, "history"), pager.query(holdingsPerPage), &list); err != nil {
		return page{}, err
	}
	pager.filters = nil
	return page{title: fmt.Sprintf("Slot %s of %s", number, name), section: "pools", template: "slot", data: map[string]any{
		"Pool": name, "Slot": number, "History": list.History, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(), "Endings": endingTexts(), "Admin": p.mayOfferActions(r, "admin"),
	}}, nil
}

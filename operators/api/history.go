package api

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// highestSlot is the highest number of a slot, because the capacity of a pool is at most 10,000.
const highestSlot = 9999

func (p *poolOperations) listHoldings(ctx context.Context, in *struct {
	PoolPath
	NumberPage
	operators.HistoryFilter
},
) (page listPage[operators.Holding], err error) {
	f := store.HoldingFilter{Pool: in.Pool, Newest: in.Order != "oldest", Limit: in.Size, From: in.From, To: in.To}
	if f.Slots, err = parseSlotRange(in.Slot); err != nil {
		return page, err
	}
	if err := checkPeriod("from", in.From, "to", in.To); err != nil {
		return page, err
	}
	if f.Newest {
		f.Before = in.afterNumber
	} else {
		f.After = in.afterNumber
	}
	if _, err := p.ledger.Pool(ctx, in.Pool); err != nil {
		return page, err
	}
	found, bound, err := p.ledger.Holdings(ctx, f)
	return newPage(found, in.isFull(len(found)), toAPIHolding, func(h store.Holding) string { return formatDecimal(h.ID) }).continueAfter(bound), err
}

// parseSlotRange parses a slot, or the first and the last slot of a range. If text is empty, it returns nil for all slots.
func parseSlotRange(text string) (*store.SlotRange, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // nil means all slots
	}
	first, last, several := strings.Cut(text, "-")
	if !several {
		last = first
	}
	low, err := strconv.Atoi(first)
	high, errLast := strconv.Atoi(last)
	if err != nil || errLast != nil || low < 0 || high < low || high > highestSlot {
		return nil, invalidProblem("slot: must be a slot between 0 and %d, or the first and the last of a range: 17, 60-119", highestSlot)
	}
	return &store.SlotRange{First: low, Last: high}, nil
}

func toAPIHolding(holding store.Holding) operators.Holding {
	return operators.Holding{
		Slot: holding.Slot, Device: holding.Device, Task: holding.Task, Batch: holding.Batch, Token: holding.Token, Attempt: holding.Attempt,
		Granted: apiTime(holding.GrantedAt), Ended: apiTimePointer(holding.EndedAt), EndedBy: string(holding.EndedBy),
		Pool: holding.Pool, Error: truncateText(holding.Error),
	}
}

type seriesSpan struct{ period, step time.Duration }

func newSeriesSpan(timeRange string) seriesSpan {
	switch timeRange {
	case "24h":
		return seriesSpan{24 * time.Hour, 10 * time.Minute}
	case "7d":
		return seriesSpan{7 * 24 * time.Hour, time.Hour}
	}
	return seriesSpan{time.Hour, time.Minute}
}

func (p *poolOperations) getSeries(ctx context.Context, in *struct {
	PoolPath
	operators.SeriesQuery
},
) (operators.Series, error) {
	s := newSeriesSpan(in.Range)
	m, err := p.ledger.Minutes(ctx, in.Pool, s.period+24*time.Hour)
	if err != nil {
		return operators.Series{}, err
	}
	return toAPISeries(in.Pool, m, s), nil
}

// toAPISeries returns the number of held slots for each step of span. It starts with the current number and goes backwards: minutes has the
// numbers of slots that were granted and freed in each minute. Steps are aligned to the clock, so that a completed step does not change.
func toAPISeries(pool string, minutes store.PoolMinutes, span seriesSpan) operators.Series {
	each := int64(span.step / time.Minute)
	now := minutes.Now.Unix() / 60
	first := max(minutes.Now.Add(-span.period).Unix()/60/each+1, minutes.Created.Unix()/60/each) * each
	points := make([]operators.SeriesPoint, (now-first)/each+1)
	held, rest := minutes.Held, minutes.Minutes
	for minute := now; minute >= first; minute-- {
		p := &points[(minute-first)/each]
		if at := time.Unix((minute+1)*60, 0); p.At.IsZero() {
			p.At, p.Held, p.HeldMin, p.HeldMax = apiTime(at), held, held, held
		}
		p.HeldMin, p.HeldMax = min(p.HeldMin, held), max(p.HeldMax, held)
		for n := len(rest); n > 0 && rest[n-1].At >= minute; n-- { // the last step also includes newer minutes
			p.Granted += int64(rest[n-1].Granted)
			p.Ended += int64(rest[n-1].Ended)
			p.Lapsed += int64(rest[n-1].Lapsed)
			p.Failed += int64(rest[n-1].Failed)
			held += rest[n-1].Ended - rest[n-1].Granted
			rest = rest[:n-1]
		}
	}
	points[len(points)-1].At = apiTime(minutes.Now)
	setCapacities(points, minutes)
	setCountsOfDayBefore(points, minutes, first, each)
	return operators.Series{Pool: pool, From: apiTime(time.Unix(first*60, 0)), To: apiTime(minutes.Now), StepMS: span.step.Milliseconds(), Points: points}
}

// minutesPerDay is the number of minutes between two steps of a series that are compared.
const minutesPerDay = 24 * 60

// setCountsOfDayBefore sets for each point how many slots were granted, and how many attempts failed, one day before. The first point begins at
// firstMinute (minutes since 1970), and each point covers minutesPerPoint minutes.
func setCountsOfDayBefore(points []operators.SeriesPoint, minutes store.PoolMinutes, firstMinute, minutesPerPoint int64) {
	for i := range points {
		if begin := firstMinute + int64(i)*minutesPerPoint - minutesPerDay; begin >= minutes.Created.Unix()/60 {
			points[i].GrantedDayBefore, points[i].FailedDayBefore = new(int64), new(int64)
		}
	}
	now := minutes.Now.Unix() / 60
	for _, m := range minutes.Minutes {
		minute := m.At + minutesPerDay
		if minute < firstMinute || minute > now {
			continue
		}
		if p := &points[(minute-firstMinute)/minutesPerPoint]; p.GrantedDayBefore != nil {
			*p.GrantedDayBefore += int64(m.Granted)
			*p.FailedDayBefore += int64(m.Failed)
		}
	}
}

// setCapacities sets the capacity of each point. minutes has the changes of the pool's capacity. A capacity stays until the minute of the
// next change.
func setCapacities(points []operators.SeriesPoint, minutes store.PoolMinutes) {
	capacity, rest := minutes.CapacityBefore, minutes.Minutes
	for _, one := range rest {
		if capacity < 0 {
			capacity = one.Capacity // the capacity before the first change is unknown: use the first known one
		}
	}
	if capacity < 0 {
		capacity = minutes.Capacity
	}
	for i := range points {
		for len(rest) > 0 && time.Unix(rest[0].At*60, 0).Before(points[i].At.Time) {
			if rest[0].Capacity >= 0 {
				capacity = rest[0].Capacity
			}
			rest = rest[1:]
		}
		points[i].Capacity = capacity
	}
	points[len(points)-1].Capacity = minutes.Capacity
}

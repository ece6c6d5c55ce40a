package api

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type poolQuery struct {
	Page
	operators.PoolFilter
}

// plain reports whether the list can be read page by page, because it is sorted by name and not filtered.
func (q *poolQuery) plain() bool { return q.Sort == "name" && q.Name == "" && !q.Only }

func (p *pools) list(ctx context.Context, in *poolQuery) (page pageOf[operators.PoolState], err error) {
	if !in.plain() {
		return p.ranked(ctx, in)
	}
	after, err := in.afterName()
	if err != nil {
		return page, err
	}
	found, err := p.ledger.PoolViews(ctx, after, in.Size, waitingShown)
	return showPage(found, in.full(len(found)), showPoolState, func(v store.PoolView) string { return v.Pool.Name }), err
}

// ranked reads the sort key of all pools, sorts them, and reads the full views only of the pools on the page.
func (p *pools) ranked(ctx context.Context, in *poolQuery) (page pageOf[operators.PoolState], err error) {
	last, err := in.afterPlace()
	if err != nil {
		return page, err
	}
	ranks, err := p.ledger.PoolRanks(ctx, in.Name)
	if err != nil {
		return page, err
	}
	var places []poolPlace
	for _, r := range ranks {
		trouble := troubleOf(r.Capacity, r.Paused, r.PoolStanding)
		at := poolPlace{rankBy(in.Sort, r, trouble), r.Name}
		if (!in.Only || len(trouble) > 0) && at.compare(last) > 0 {
			places = append(places, at)
		}
	}
	slices.SortFunc(places, poolPlace.compare)
	shown := places[:min(len(places), in.Size)]
	order := make(map[string]int, len(shown))
	names := make([]string, len(shown))
	for i, at := range shown {
		order[at.name], names[i] = i, at.name
	}
	found, err := p.ledger.PoolViewsOf(ctx, names, waitingShown)
	slices.SortFunc(found, func(a, b store.PoolView) int { return order[a.Pool.Name] - order[b.Pool.Name] })
	page = showPage(found, false, showPoolState, nil)
	if len(shown) < len(places) {
		page.next = pageToken(in.Sort + ":" + shown[len(shown)-1].key())
	}
	return page, err
}

// poolPlace is the position of a pool in a sorted list: higher ranks first, then by name.
type poolPlace struct {
	rank int64
	name string
}

func (a poolPlace) compare(b poolPlace) int {
	return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.name, b.name))
}

func (a poolPlace) key() string { return strconv.FormatInt(a.rank, 10) + ":" + a.name }

// afterPlace returns the position after which the page starts. It has the rank that the last pool of the previous page had
// at that time, even if its rank is different now.
func (q *poolQuery) afterPlace() (poolPlace, error) {
	key, err := q.afterName()
	if err != nil || key == "" {
		return poolPlace{rank: 1<<63 - 1}, err
	}
	sort, key, _ := strings.Cut(key, ":")
	text, name, ok := strings.Cut(key, ":")
	rank, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil || sort != q.Sort {
		return poolPlace{}, badPage()
	}
	return poolPlace{rank, name}, nil
}

// rankBy returns the number by which pools are sorted. For trouble, the waiting tasks count only to a power of two, so
// that rows of an open page seldom change places.
func rankBy(sort string, r store.PoolRank, trouble []string) int64 {
	switch sort {
	case "held":
		return int64(r.Held) * 1_000_000 / int64(max(r.Capacity, 1))
	case "waiting":
		return r.Pending
	case "trouble":
		all := operators.PoolTroubles()
		worst := 0
		if len(trouble) > 0 {
			worst = len(all) - slices.Index(all, trouble[0])
		}
		return int64(64*worst + bits.Len64(uint64(max(r.Pending, 0))))
	}
	return 0
}

// troubleOf returns the problems of a pool, worst first.
func troubleOf(capacity int, paused bool, s store.PoolStanding) []string {
	waits := s.Pending > 0
	trouble := []string{}
	for i, there := range []bool{s.Held > capacity, s.Stalled, waits && paused, waits && capacity == 0, waits && s.Closed} {
		if there {
			trouble = append(trouble, operators.PoolTroubles()[i])
		}
	}
	return trouble
}

func (p *pools) totals(ctx context.Context, _ *struct{}) (totals operators.PoolTotals, err error) {
	ranks, err := p.ledger.PoolRanks(ctx, "")
	for _, r := range ranks {
		totals.Pools++
		totals.Capacity += int64(r.Capacity)
		totals.Held += int64(r.Held)
		totals.Pending += r.Pending
		if len(troubleOf(r.Capacity, r.Paused, r.PoolStanding)) > 0 {
			totals.Trouble++
		}
	}
	return totals, err
}

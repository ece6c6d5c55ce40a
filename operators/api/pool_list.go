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

// canReadByPage reports whether the list can be read page by page, because it is sorted by name and not filtered.
func (q *poolQuery) canReadByPage() bool { return q.Sort == "name" && q.Name == "" && !q.OnlyTrouble }

func (p *poolOperations) list(ctx context.Context, in *poolQuery) (page listPage[operators.PoolState], err error) {
	if !in.canReadByPage() {
		return p.listByRank(ctx, in)
	}
	found, err := p.ledger.PoolOverviews(ctx, in.after, in.Size, maxWaitingShown)
	return newPage(found, in.isFull(len(found)), toAPIPoolState, func(v store.PoolOverview) string { return v.Pool.Name }), err
}

// listByRank reads the sort key of all pools and sorts the pools as request says. It reads the full views only of the pools on the page.
func (p *poolOperations) listByRank(ctx context.Context, request *poolQuery) (page listPage[operators.PoolState], err error) {
	last, err := request.afterPosition()
	if err != nil {
		return page, err
	}
	ranks, err := p.ledger.PoolRanks(ctx, request.Name)
	if err != nil {
		return page, err
	}
	var places []poolPosition
	for _, r := range ranks {
		trouble := poolTroubleCodes(r.Capacity, r.Paused, r.PoolStatus)
		place := poolPosition{poolRank(request.Sort, r, trouble), r.Name}
		if (!request.OnlyTrouble || len(trouble) > 0) && place.compare(last) > 0 {
			places = append(places, place)
		}
	}
	slices.SortFunc(places, poolPosition.compare)
	shown := places[:min(len(places), request.Size)]
	order := make(map[string]int, len(shown))
	names := make([]string, len(shown))
	for i, place := range shown {
		order[place.name], names[i] = i, place.name
	}
	found, err := p.ledger.PoolOverviewsByName(ctx, names, maxWaitingShown)
	slices.SortFunc(found, func(a, b store.PoolOverview) int { return order[a.Pool.Name] - order[b.Pool.Name] })
	page = newPage(found, false, toAPIPoolState, nil)
	if len(shown) < len(places) {
		page.next = pageToken(request.Sort + ":" + shown[len(shown)-1].tokenText())
	}
	return page, err
}

// poolPosition is the position of a pool in a sorted list: higher ranks first, then by name.
type poolPosition struct {
	rank int64
	name string
}

// compare returns a negative number if a comes before other in the list.
func (a poolPosition) compare(other poolPosition) int {
	return cmp.Or(cmp.Compare(other.rank, a.rank), cmp.Compare(a.name, other.name))
}

// tokenText returns the position as text, for a page token.
func (a poolPosition) tokenText() string { return strconv.FormatInt(a.rank, 10) + ":" + a.name }

// afterPosition returns the position after which the page starts: the name of the last pool of the previous page, and
// the rank that this pool had then. Its present rank may be different.
func (q *poolQuery) afterPosition() (poolPosition, error) {
	if q.after == "" {
		return poolPosition{rank: 1<<63 - 1}, nil
	}
	sort, key, _ := strings.Cut(q.after, ":")
	text, name, ok := strings.Cut(key, ":")
	rank, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil || sort != q.Sort {
		return poolPosition{}, pageTokenProblem()
	}
	return poolPosition{rank, name}, nil
}

// poolRank returns the rank of pool in the order sortOrder. Pools with a higher rank come first. trouble has the problems of the pool. In
// the order trouble, the number of waiting tasks is rounded to a power of two, so that the rows of an open page seldom change places.
func poolRank(sortOrder string, pool store.PoolRank, trouble []string) (rank int64) {
	switch sortOrder {
	case "held":
		return int64(pool.Held) * 1_000_000 / int64(max(pool.Capacity, 1))
	case "waiting":
		return pool.Pending
	case "trouble":
		all := operators.PoolTroubles()
		worst := 0
		if len(trouble) > 0 {
			worst = len(all) - slices.Index(all, trouble[0])
		}
		return int64(64*worst + bits.Len64(uint64(max(pool.Pending, 0))))
	}
	return 0
}

// poolTroubleCodes returns the codes of the problems of a pool with this capacity and status, worst first.
func poolTroubleCodes(capacity int, paused bool, status store.PoolStatus) (codes []string) {
	hasWaiting := status.Pending > 0
	trouble := []string{}
	for i, there := range []bool{status.Held > capacity, status.Failing, status.Stalled, hasWaiting && paused, hasWaiting && capacity == 0, hasWaiting && status.Closed} {
		if there {
			trouble = append(trouble, operators.PoolTroubles()[i])
		}
	}
	return trouble
}

func (p *poolOperations) getTotals(ctx context.Context, _ *struct{}) (totals operators.PoolTotals, err error) {
	ranks, err := p.ledger.PoolRanks(ctx, "")
	for _, r := range ranks {
		totals.Pools++
		totals.Capacity += int64(r.Capacity)
		totals.Held += int64(r.Held)
		totals.Pending += r.Pending
		if len(poolTroubleCodes(r.Capacity, r.Paused, r.PoolStatus)) > 0 {
			totals.InTrouble++
		}
	}
	return totals, err
}

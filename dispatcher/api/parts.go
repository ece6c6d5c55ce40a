package api

import (
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/internal/fair"
)

const (
	listsAtOnce = 8 // pages of lists; others wait
	listsEach   = 3 // of one operator token

	firstPart = 50      // entries: nobody knows yet how large they are
	pageBytes = 1 << 20 // a page of large entries ends about here

	smallBody   = 64 << 10 // bytes
	largeAtOnce = 2        // bodies, one of each operator token; others wait
)

// inParts reads a page of at most size entries in parts, and ends it where its entries
// are large: a page is held in memory. more says that there may be others behind it.
func inParts[T any](size int, read func(last *T, limit int) ([]T, error), weigh func(T) int) (list []T, more bool, err error) {
	var last *T
	for weight, limit := 0, firstPart; len(list) < size && weight < pageBytes; {
		limit = min(limit, size-len(list))
		part, err := read(last, limit)
		if err != nil {
			return nil, false, err
		}
		list = append(list, part...)
		if len(part) < limit {
			return list, false, nil
		}
		for _, one := range part {
			weight += weigh(one)
		}
		last = &list[len(list)-1]
		limit = max(1, len(list)*max(0, pageBytes-weight)/max(1, weight))
	}
	return list, true, nil
}

// turnOfList lets few pages of lists be read and answered at once: others wait.
func (r *routes) turnOfList(ctx huma.Context, next func(huma.Context)) error {
	return inTurn(r.lists, ctx, next)
}

// turnOfLarge lets few large bodies be read at once: in memory one of 1 MiB, as permitted, is
// 50 MiB where it is a list of empty objects. Others wait.
func (r *routes) turnOfLarge(ctx huma.Context, next func(huma.Context)) error {
	if request, _ := humago.Unwrap(ctx); request.ContentLength < 0 || request.ContentLength > smallBody {
		return inTurn(r.large, ctx, next)
	}
	next(ctx)
	return nil
}

func inTurn(turns *fair.Shares, ctx huma.Context, next func(huma.Context)) error {
	leave, err := await(ctx.Context(), turns)
	if err != nil {
		return err // nobody hears it any more
	}
	defer leave()
	next(ctx)
	return nil
}

package api

import "github.com/danielgtaylor/huma/v2"

const (
	listsAtOnce = 8 // pages of lists; others wait
	listsEach   = 3 // of one operator token

	firstPart = 50      // entries: nobody knows yet how large they are
	pageBytes = 1 << 20 // a page of large entries ends about here
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

// turn lets few pages of lists be read and answered at once: others wait.
func (a *API) turn(operations huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		who, admin := operatorOf(ctx.Context()).share()
		leave, err := a.lists.Await(ctx.Context(), who, admin)
		if err != nil {
			a.refuse(operations, ctx, err) // nobody hears it any more
			return
		}
		defer leave()
		next(ctx)
	}
}

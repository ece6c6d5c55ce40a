package api

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

func stamp(t time.Time) operators.Time { return operators.Time{Time: t} }

func stampPointer(t *time.Time) *operators.Time {
	if t == nil {
		return nil
	}
	return &operators.Time{Time: *t}
}

// apply sets what a change says.
func apply[T any](c operators.Change[T], field *T, standard T) {
	switch {
	case !c.Said:
	case c.To == nil:
		*field = standard
	default:
		*field = *c.To
	}
}

// readPatch checks what a patch sets, and turns it into what is kept of it.
func readPatch[Written, Kept any](p operators.Change[Written], read func(Written) (Kept, error)) (operators.Change[Kept], error) {
	if p.To == nil {
		return operators.Change[Kept]{Said: p.Said}, nil
	}
	kept, err := read(*p.To)
	return operators.Set(kept), err
}

// Page is asked for with every list.
type Page struct {
	Size  int    `query:"page_size" minimum:"1" maximum:"1000" default:"100" doc:"Entries of one page"`
	Token string `query:"page_token" maxLength:"400" doc:"next_page_token of the page before"`
}

// page finds it in the query of a list.
func (p *Page) page() *Page { return p }

// afterName is where the page starts in a list ordered by name.
func (p Page) afterName() (string, error) {
	key, err := base64.RawURLEncoding.DecodeString(p.Token)
	if err != nil || !storable(string(key)) {
		return "", badPage()
	}
	return string(key), nil
}

// afterNumber is where the page starts in a list ordered by number; 0: at its
// beginning.
func (p Page) afterNumber() (int64, error) {
	name, err := p.afterName()
	if err != nil || name == "" {
		return 0, err
	}
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return 0, badPage()
	}
	return n, nil
}

func badPage() error {
	return invalid("page_token: not one that this list gave")
}

// full says that there may be entries behind a page of so many.
func (p Page) full(got int) bool { return got >= p.Size }

// pageOf are the entries of a page, and the token of the page after it; empty: there
// is none.
type pageOf[T any] struct {
	entries []T
	next    string
}

// showPage shows entries. more says that there may be others behind the last one's key.
func showPage[K, T any](kept []K, more bool, show func(K) T, key func(K) string) pageOf[T] {
	p := pageOf[T]{entries: make([]T, len(kept))}
	for i, one := range kept {
		p.entries[i] = show(one)
	}
	if more && len(kept) > 0 {
		p.next = pageToken(key(kept[len(kept)-1]))
	}
	return p
}

// behind makes a page that is not full go on behind the entries that were held against
// the filter.
func (p pageOf[T]) behind(stretch store.Stretch) pageOf[T] {
	if p.next == "" && stretch.More {
		p.next = pageToken(number(stretch.End))
	}
	return p
}

func pageToken(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// Numbered names a batch, a task or a token.
type Numbered struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// milliseconds of a duration on the wire.
func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// body is an answer of which only the body matters.
type body[T any] struct{ Body T }

// created is an answer that is 201 for what is new.
type created[T any] struct {
	Status int
	Body   T
}

func createdStatus(isNew bool) int {
	if isNew {
		return http.StatusCreated
	}
	return http.StatusOK
}

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

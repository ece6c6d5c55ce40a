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

// apply sets the field to the value of a change, or to standard if the change asks for the default.
func apply[T any](c operators.Change[T], field *T, standard T) {
	switch {
	case !c.Said:
	case c.To == nil:
		*field = standard
	default:
		*field = *c.To
	}
}

// readPatch checks the value of a change and converts it to the stored form.
func readPatch[Written, Kept any](p operators.Change[Written], read func(Written) (Kept, error)) (operators.Change[Kept], error) {
	if p.To == nil {
		return operators.Change[Kept]{Said: p.Said}, nil
	}
	kept, err := read(*p.To)
	return operators.Set(kept), err
}

// Page has the paging parameters of every list.
type Page struct {
	Size  int    `query:"page_size" minimum:"1" maximum:"1000" default:"100" doc:"Entries of one page"`
	Token string `query:"page_token" maxLength:"400" doc:"next_page_token of the page before"`
}

// page returns the paging parameters of a list's query.
func (p *Page) page() *Page { return p }

// afterName returns the name after which the page starts, in a list ordered by name.
func (p Page) afterName() (string, error) {
	key, err := base64.RawURLEncoding.DecodeString(p.Token)
	if err != nil || !storable(string(key)) {
		return "", badPage()
	}
	return string(key), nil
}

// afterNumber returns the number after which the page starts, in a list ordered by number. If it is 0, the page starts at
// the beginning.
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

// full reports whether the page is full, so that there may be more entries after it.
func (p Page) full(got int) bool { return got >= p.Size }

// pageOf has the entries of a page and the token of the next page. If next is empty, there is no next page.
type pageOf[T any] struct {
	entries []T
	next    string
}

// showPage converts stored entries to a page. If more is true, there may be entries after the last one, and the page gets
// a token with the key of its last entry.
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

// behind sets the token of a page that is not full, if the filter was not yet applied to all entries: the next page starts
// after the last entry to which it was applied.
func (p pageOf[T]) behind(stretch store.Stretch) pageOf[T] {
	if p.next == "" && stretch.More {
		p.next = pageToken(number(stretch.End))
	}
	return p
}

func pageToken(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// Numbered is the path parameter {id}: the id of a batch, a task or a token.
type Numbered struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// milliseconds converts a number of milliseconds, as sent over the API, to a Duration.
func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// body is a response with only a body.
type body[T any] struct{ Body T }

// created is a response with the status 201 if something was created.
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
	listsAtOnce = 8 // pages of lists that are read at once; additional requests wait
	listsEach   = 3 // pages of one operator token that are read at once

	firstPart = 50      // entries in the first part of a page, because their size is not known yet
	pageBytes = 1 << 20 // a page with large entries ends at about this number of bytes

	smallBody   = 64 << 10 // in bytes
	largeAtOnce = 2        // large bodies that are read at once, one of each operator token; additional requests wait
)

// inParts reads a page of at most size entries in parts, and ends the page early if its entries are large, because a page
// is held in memory. more reports whether there may be entries after the page.
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

// turnOfList limits how many pages of lists are read and sent at once. Additional requests wait.
func (r *routes) turnOfList(ctx huma.Context, next func(huma.Context)) error {
	return inTurn(r.lists, ctx, next)
}

// turnOfLarge limits how many large bodies are read at once. Additional requests wait. A body of 1 MiB, the maximum, takes 50
// MiB of memory if it is a list of empty objects.
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
		return err // the client has disconnected and does not get this error
	}
	defer leave()
	next(ctx)
	return nil
}

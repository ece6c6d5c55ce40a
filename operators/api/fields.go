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

func apiTime(t time.Time) operators.Time { return operators.Time{Time: t} }

func apiTimePointer(t *time.Time) *operators.Time {
	if t == nil {
		return nil
	}
	return &operators.Time{Time: *t}
}

// applyChange sets the field to the value of a change, or to defaultValue if the change asks for the default.
func applyChange[T any](c operators.Change[T], field *T, defaultValue T) {
	switch {
	case !c.Present:
	case c.Value == nil:
		*field = defaultValue
	default:
		*field = *c.Value
	}
}

// convertChange checks the value of a change and converts it to the stored form.
func convertChange[Written, Kept any](p operators.Change[Written], read func(Written) (Kept, error)) (operators.Change[Kept], error) {
	if p.Value == nil {
		return operators.Change[Kept]{Present: p.Present}, nil
	}
	kept, err := read(*p.Value)
	return operators.Set(kept), err
}

// Page has the paging parameters of every list. A page can have fewer entries than Size although more follow: see readInParts
// and continueAfter.
type Page struct {
	Size  int    `query:"page_size" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number of entries per page"`
	Token string `query:"page_token" maxLength:"400" doc:"next_page_token of the previous page"`
}

// paging returns the paging parameters of a list's query.
func (p *Page) paging() *Page { return p }

// afterName returns the name after which the page starts, in a list ordered by name.
func (p Page) afterName() (string, error) {
	key, err := base64.RawURLEncoding.DecodeString(p.Token)
	if err != nil || !isStorable(string(key)) {
		return "", pageTokenProblem()
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
		return 0, pageTokenProblem()
	}
	return n, nil
}

func pageTokenProblem() error {
	return invalid("page_token: must be the next_page_token of a page of this list")
}

// isFull reports whether a page with got entries is full, so that there may be more entries after it.
func (p Page) isFull(got int) bool { return got >= p.Size }

// listPage has the entries of a page and the token of the next page. If next is empty, there is no next page.
type listPage[T any] struct {
	entries []T
	next    string
}

// newPage converts stored entries to a page. If hasMore is true, there may be entries after the last one, and the page gets
// a token with the key of its last entry.
func newPage[K, T any](stored []K, hasMore bool, show func(K) T, key func(K) string) listPage[T] {
	p := listPage[T]{entries: make([]T, len(stored))}
	for i, one := range stored {
		p.entries[i] = show(one)
	}
	if hasMore && len(stored) > 0 {
		p.next = pageToken(key(stored[len(stored)-1]))
	}
	return p
}

// continueAfter sets the token of a page that is not full, if the search has not examined all entries yet. The next
// page then starts after the last entry that the search has examined.
func (p listPage[T]) continueAfter(stretch store.SearchBound) listPage[T] {
	if p.next == "" && stretch.More {
		p.next = pageToken(decimal(stretch.End))
	}
	return p
}

func pageToken(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// IDPath is the path parameter {id}: the id of a batch, a task or a token.
type IDPath struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// milliseconds converts a number of milliseconds, as sent over the API, to a Duration.
func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// bodyResponse is a response with only a body.
type bodyResponse[T any] struct{ Body T }

// createdResponse is a response with the status 201 if something was created.
type createdResponse[T any] struct {
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
	maxListReads         = 8 // pages of lists that are read at once; additional requests wait
	maxListReadsPerToken = 3 // pages of one operator token that are read at once

	firstPartSize = 50      // entries in the first part of a page, because their size is not known yet
	pageBytes     = 1 << 20 // a page with large entries ends at about this number of bytes

	smallBody      = 64 << 10 // in bytes
	maxLargeBodies = 2        // large bodies that are read at once, at most one of each operator token; additional requests wait
)

// readInParts reads a page of at most size entries in parts, and ends the page early if its entries are large, because a page
// is held in memory. more reports whether there may be entries after the page.
func readInParts[T any](size int, read func(last *T, limit int) ([]T, error), entryBytes func(T) int) (list []T, more bool, err error) {
	var last *T
	for totalBytes, limit := 0, firstPartSize; len(list) < size && totalBytes < pageBytes; {
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
			totalBytes += entryBytes(one)
		}
		last = &list[len(list)-1]
		limit = max(1, len(list)*max(0, pageBytes-totalBytes)/max(1, totalBytes))
	}
	return list, true, nil
}

// awaitListTurn limits how many pages of lists are read and sent at once. Additional requests wait.
func (r *routes) awaitListTurn(ctx huma.Context, next func(huma.Context)) error {
	return runInTurn(r.listTurns, ctx, next)
}

// awaitLargeTurn limits how many bodies of more than smallBody bytes, or of unknown length, are read at once. Additional
// requests wait. A body of 1 MiB, the maximum, takes 50 MiB of memory if it is a list of empty objects.
func (r *routes) awaitLargeTurn(ctx huma.Context, next func(huma.Context)) error {
	if request, _ := humago.Unwrap(ctx); request.ContentLength < 0 || request.ContentLength > smallBody {
		return runInTurn(r.largeTurns, ctx, next)
	}
	next(ctx)
	return nil
}

func runInTurn(turns *fair.Shares, ctx huma.Context, next func(huma.Context)) error {
	leave, err := awaitTurn(ctx.Context(), turns)
	if err != nil {
		return err // the client has disconnected and does not get this error
	}
	defer leave()
	next(ctx)
	return nil
}

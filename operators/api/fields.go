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

func apiTime(at time.Time) operators.Time { return operators.Time{Time: at} }

// apiTimePointer converts a time of the ledger to the form of the API. It returns nil for nil.
func apiTimePointer(at *time.Time) *operators.Time {
	if at == nil {
		return nil
	}
	return &operators.Time{Time: *at}
}

// applyChange sets field to the value of change, or to defaultValue if the change asks for the default. If the change is not present, it
// does nothing.
func applyChange[Value any](change operators.Change[Value], field *Value, defaultValue Value) {
	switch {
	case !change.Present:
	case change.Value == nil:
		*field = defaultValue
	default:
		*field = *change.Value
	}
}

// applyMilliseconds does the same as applyChange for a field that is a duration. The value of change is in milliseconds.
func applyMilliseconds(change operators.Change[int64], field *time.Duration, defaultValue time.Duration) {
	ms := field.Milliseconds()
	applyChange(change, &ms, defaultValue.Milliseconds())
	*field = milliseconds(ms)
}

// convertChange converts the value of change to the stored form. It calls convert, which also checks the value.
func convertChange[Written, Kept any](change operators.Change[Written], convert func(Written) (Kept, error)) (operators.Change[Kept], error) {
	if change.Value == nil {
		return operators.Change[Kept]{Present: change.Present}, nil
	}
	kept, err := convert(*change.Value)
	return operators.Set(kept), err
}

// Page has the paging parameters of every list. A page can have fewer entries than Size although more follow: see readInParts
// and continueAfter.
type Page struct {
	Size  int    `query:"page_size" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number of entries per page"`
	Token string `query:"page_token" maxLength:"400" doc:"next_page_token of the previous page"`

	after string // position after which the page starts, which decodeToken sets; empty: the beginning of the list
}

func (p *Page) paging() *Page { return p }

// decodeToken reads the position after which the page starts.
func (p *Page) decodeToken() error {
	key, err := base64.RawURLEncoding.DecodeString(p.Token)
	if p.after = string(key); err != nil || !isStorable(p.after) {
		return pageTokenProblem()
	}
	return nil
}

// NumberPage has the paging parameters of a list whose positions are numbers.
type NumberPage struct {
	Page
	afterNumber int64 // position after which the page starts, which decodeToken sets; 0: the beginning of the list
}

// decodeToken reads the position after which the page starts.
func (p *NumberPage) decodeToken() (err error) {
	if err := p.Page.decodeToken(); err != nil || p.after == "" {
		return err
	}
	if p.afterNumber, err = strconv.ParseInt(p.after, 10, 64); err != nil {
		return pageTokenProblem()
	}
	return nil
}

// pageTokenProblem returns the problem for a page token that is not of this list.
func pageTokenProblem() error {
	return invalidProblem("page_token: must be the next_page_token of a page of this list")
}

// isFull reports whether a page with this number of entries is full, so that there may be more entries after it.
func (p Page) isFull(entries int) bool { return entries >= p.Size }

// listPage has the entries of a page and the token of the next page. If next is empty, there is no next page.
type listPage[T any] struct {
	entries []T
	next    string
}

// newPage makes a page of stored entries. convert makes an entry of the page from a stored one. If hasMore is true, there may be
// entries after the last one, and the page gets a token with the key of its last entry. keyOf returns the key of an entry.
func newPage[Stored, Shown any](stored []Stored, hasMore bool, convert func(Stored) Shown, keyOf func(Stored) string) listPage[Shown] {
	p := listPage[Shown]{entries: make([]Shown, len(stored))}
	for i, one := range stored {
		p.entries[i] = convert(one)
	}
	if hasMore && len(stored) > 0 {
		p.next = pageToken(keyOf(stored[len(stored)-1]))
	}
	return p
}

// continueAfter adds a page token to a page that has none, if the search ended before the end of the list. searched is the bound of the
// search. The next page starts after it.
func (p listPage[T]) continueAfter(searched store.SearchBound) listPage[T] {
	if p.next == "" && searched.More {
		p.next = pageToken(formatDecimal(searched.End))
	}
	return p
}

// pageToken returns the page token that contains key, the position after which the next page starts.
func pageToken(key string) (token string) { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// IDPath is the path parameter {id}: the id of a batch, a task or a token.
type IDPath struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func formatDecimal(n int64) string { return strconv.FormatInt(n, 10) }

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

type bodyResponse[T any] struct{ Body T }

// createdResponse is a response with the status 201 if something was created.
type createdResponse[T any] struct {
	Status int
	Body   T
}

func createdStatus(isNew bool) (httpStatus int) {
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

// readInParts reads a page of at most pageSize entries. It reads the page in parts and ends it early if the entries are large, because a
// page is held in memory. readPart reads at most limit entries after last, and last is nil for the first part. entryBytes returns the size
// of an entry. hasMore reports whether there may be entries after the page.
func readInParts[Entry any](pageSize int, readPart func(last *Entry, limit int) ([]Entry, error), entryBytes func(Entry) int) (entries []Entry, hasMore bool, err error) {
	var last *Entry
	for totalBytes, limit := 0, firstPartSize; len(entries) < pageSize && totalBytes < pageBytes; {
		limit = min(limit, pageSize-len(entries))
		part, err := readPart(last, limit)
		if err != nil {
			return nil, false, err
		}
		entries = append(entries, part...)
		if len(part) < limit {
			return entries, false, nil
		}
		for _, one := range part {
			totalBytes += entryBytes(one)
		}
		last = &entries[len(entries)-1]
		limit = max(1, len(entries)*max(0, pageBytes-totalBytes)/max(1, totalBytes))
	}
	return entries, true, nil
}

// limitListReads returns operation with a limit on how many pages of lists are read and sent at once. Additional requests wait.
func (r *routes) limitListReads(operation huma.Operation) huma.Operation {
	operation.Middlewares = r.newMiddlewares(func(ctx huma.Context, next func(huma.Context)) error { return runWhenFree(r.listTurns, ctx, next) })
	return operation
}

// limitLargeBodies limits how many bodies of more than smallBody bytes, or of unknown length, are read at once. Additional
// requests wait. A body of 1 MiB, the maximum, takes 50 MiB of memory if it is a list of empty objects.
func (r *routes) limitLargeBodies(ctx huma.Context, next func(huma.Context)) error {
	if request, _ := humago.Unwrap(ctx); request.ContentLength < 0 || request.ContentLength > smallBody {
		return runWhenFree(r.largeTurns, ctx, next)
	}
	next(ctx)
	return nil
}

// runWhenFree calls next as soon as limit (a limit on concurrent operations) has room for the operator of the request.
func runWhenFree(limit *fair.Shares, ctx huma.Context, next func(huma.Context)) error {
	leave, err := startWhenFree(ctx.Context(), limit)
	if err != nil {
		return err // the client has disconnected and does not get this error
	}
	defer leave()
	next(ctx)
	return nil
}

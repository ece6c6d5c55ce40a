package api

import (
	"context"
	"encoding/base64"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxListReads         = 8 // pages of lists that are read at once; additional requests wait
	maxListReadsPerToken = 3 // pages of one operator token that are read at once

	firstPartSize = 50      // entries in the first part of a page, because their size is not known yet
	pageBytes     = 1 << 20 // a page with large entries ends at about this number of bytes
)

type pagedQuery[I any] interface {
	*I
	paging() *Page
	decodeToken() error
}

// registerList adds a list: its pages as JSON, and the complete list as a stream. readPage reads one page. Response is a struct whose first
// field has the entries of a page, and whose second field has the token of the next page.
func registerList[Response, Request, Entry any, RequestPointer pagedQuery[Request]](r *routes, op huma.Operation, readPage func(context.Context, *Request) (listPage[Entry], error)) {
	registerLive[Response, Request, Entry, RequestPointer](r, op, readPage, nil)
}

// registerLive adds a list (see registerList) that can also be followed live. live sends new entries until the client disconnects. If live
// is nil, the list has no live form.
func registerLive[Response, Request, Entry any, RequestPointer pagedQuery[Request]](
	r *routes, op huma.Operation, readPage func(context.Context, *Request) (listPage[Entry], error), live func(context.Context, huma.Context, *Request),
) {
	op.Responses = listResponses()
	if live != nil {
		op.Responses["200"].Content[typeEvents] = plainTextMediaType()
	}
	register(r, r.limitListReads(op), func(ctx context.Context, in *Request) (response Response, err error) {
		page, err := readPage(ctx, in)
		fields := reflect.ValueOf(&response).Elem()
		fields.Field(0).Set(reflect.ValueOf(page.entries))
		fields.Field(1).SetString(page.next)
		return response, err
	})
	registerStream(r, op, func(ctx context.Context, in *Request) (*huma.StreamResponse, error) {
		asked := RequestPointer(in).paging()
		asked.Size = exportPageSize
		first, err := readPage(ctx, in)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(out huma.Context) {
			if acceptedStreamType(out.Header("Accept")) == typeEvents {
				live(ctx, out, in)
				return
			}
			writeStream(out, first, func(token string) (listPage[Entry], error) {
				asked.Token = token
				if err := RequestPointer(in).decodeToken(); err != nil {
					return first, err
				}
				return readPage(ctx, in)
			})
		}}, nil
	})
}

func listResponses() (responseByStatus map[string]*huma.Response) {
	return map[string]*huma.Response{"200": {Content: map[string]*huma.MediaType{
		"application/json": {}, operators.TypeCSV: plainTextMediaType(), operators.TypeNDJSON: plainTextMediaType(),
	}}}
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

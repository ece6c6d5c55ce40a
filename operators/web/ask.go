package web

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

// client is a client of the API of this process, which acts as the visitor of
// each request.
type client struct{ *operators.Client }

func newClient(api API) client {
	c, err := operators.New(operators.Config{URL: "http://inside", Tries: 1, Transport: inProcess{api}})
	if err != nil { // that URL is one
		panic(err)
	}
	return client{c}
}

// get reads a resource without a type of its own, or a path that a visitor wrote.
func (c client) get(r *http.Request, path string, query url.Values, answer any) error {
	return c.Do(r.Context(), operators.Request{Method: http.MethodGet, Path: path, Query: query}, answer)
}

// post sends a change to the API.
func (c client) post(ctx context.Context, path string, body any) error {
	return c.Do(ctx, operators.Request{Method: http.MethodPost, Path: path, Body: body}, nil)
}

// command is a form that sends an action about one entry of a list, with the
// reason if it has one, and leads back to the page of that entry.
func (c client) command(list, action, said string) change {
	return func(r *http.Request) (string, string, error) {
		id := r.PathValue("id")
		var body any
		if r.PostForm.Has("reason") {
			body = operators.PauseReason{Reason: r.PostForm.Get("reason")}
		}
		return "/" + list + "/" + url.PathEscape(id), said, c.post(r.Context(), operators.Path(list, id, action), body)
	}
}

// filtersOf takes the filters of those names out of a query; none is empty.
func filtersOf(query url.Values, names ...string) url.Values {
	filters := url.Values{}
	for _, name := range names {
		if v := query.Get(name); v != "" {
			filters.Set(name, v)
		}
	}
	return filters
}

// pager knows the part of a list that a visitor looks at.
type pager struct {
	path    string
	filters url.Values
	token   string // of the API; empty: the first part
}

func pagerOf(r *http.Request, filters url.Values) pager {
	return pager{path: r.URL.EscapedPath(), filters: filters, token: r.URL.Query().Get("page")}
}

func (p pager) first() bool { return p.token == "" }

// query asks the API for that part.
func (p pager) query(size int) url.Values {
	query := url.Values{"page_size": {strconv.Itoa(size)}}
	for name := range p.filters {
		query.Set(name, p.filters.Get(name))
	}
	if p.token != "" {
		query.Set("page_token", p.token)
	}
	return query
}

// next is the address of the part with that token; empty: there is none.
func (p pager) next(token string) string {
	if token == "" {
		return ""
	}
	query := url.Values{"page": {token}}
	for name := range p.filters {
		query.Set(name, p.filters.Get(name))
	}
	return p.path + "?" + query.Encode()
}

// inProcess takes requests to the API without a network.
type inProcess struct{ api API }

// RoundTrip answers a request as the visitor of its context.
func (i inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := *r
	if in.Body == nil {
		in.Body = http.NoBody
	} else if in.ContentLength == 0 {
		in.ContentLength = -1 // not known
	}
	out := &recorded{header: http.Header{}, status: http.StatusOK}
	i.api.Inside(visitorOf(r.Context()), out, &in)
	return &http.Response{StatusCode: out.status, Header: out.header, Body: io.NopCloser(&out.body), Request: r}, nil
}

// recorded is an answer that stays in this process.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header of the answer.
func (r *recorded) Header() http.Header { return r.header }

// WriteHeader keeps the status.
func (r *recorded) WriteHeader(status int) { r.status = status }

// Write keeps the body.
func (r *recorded) Write(b []byte) (int, error) { return r.body.Write(b) }

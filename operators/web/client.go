package web

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/api"
)

// client is a client of the API of this process. It acts as the visitor of each request.
type client struct{ *operators.Client }

// newClient returns a client that calls api in this process.
func newClient(api API) client {
	c, err := operators.New(operators.Config{URL: "http://inside", MaxTries: 1, Transport: inProcessTransport{api}})
	if err != nil { // the URL is valid
		panic(err)
	}
	return client{c}
}

// get sends a GET request for path, as the visitor in the request r, and decodes the response into answer. It is for resources that have no
// method in the client, and for paths that a visitor entered.
func (c client) get(r *http.Request, path string, query url.Values, answer any) error {
	return c.Do(r.Context(), operators.Request{Method: http.MethodGet, Path: path, Query: query}, answer)
}

func (c client) post(ctx context.Context, path string, body any) error {
	return c.Do(ctx, operators.Request{Method: http.MethodPost, Path: path, Body: body}, nil)
}

// newEntryAction returns the formAction that calls actionName, an action of the API on one entry of a list, such as /v1/pools/{id}/pause.
// listName is the name of the list (pools), {id} is the path parameter of the form, and messageKey is the key of the message about success.
// If the form has the input `reason`, the action gets it. Only pause and block use a reason. Afterwards the browser shows the page of the
// entry.
func (c client) newEntryAction(listName, actionName, messageKey string) formAction {
	return func(r *http.Request) (string, string, error) {
		id := r.PathValue("id")
		var body any
		if r.PostForm.Has("reason") {
			body = operators.PauseReason{Reason: r.PostForm.Get("reason")}
		}
		return "/" + listName + "/" + url.PathEscape(id), messageKey, c.post(r.Context(), operators.Path(listName, id, actionName), body)
	}
}

// nonEmptyParams returns the parameters of query with these names that are not empty.
func nonEmptyParams(query url.Values, names ...string) url.Values {
	filters := url.Values{}
	for _, name := range names {
		if v := query.Get(name); v != "" {
			filters.Set(name, v)
		}
	}
	return filters
}

// pager identifies the part of a long list that a visitor views.
type pager struct {
	path    string
	filters url.Values
	token   string // page token of the API; empty means the first part
}

// newPager returns the pager of the list that the request views with these filters.
func newPager(r *http.Request, filters url.Values) pager {
	return pager{path: r.URL.EscapedPath(), filters: filters, token: r.URL.Query().Get("page")}
}

func (p pager) isFirst() bool { return p.token == "" }

// query returns the query of the API for this part, with at most pageSize entries.
func (p pager) query(pageSize int) url.Values {
	query := url.Values{"page_size": {strconv.Itoa(pageSize)}}
	for name := range p.filters {
		query.Set(name, p.filters.Get(name))
	}
	if p.token != "" {
		query.Set("page_token", p.token)
	}
	return query
}

// nextAddress returns the address of the part of the list that pageToken selects. It is empty if pageToken is empty.
func (p pager) nextAddress(pageToken string) string {
	if pageToken == "" {
		return ""
	}
	query := url.Values{"page": {pageToken}}
	for name := range p.filters {
		query.Set(name, p.filters.Get(name))
	}
	return p.path + "?" + query.Encode()
}

// inProcessTransport sends requests to the API without a network.
type inProcessTransport struct{ api API }

// RoundTrip answers the request in this process. It acts as the visitor in the request's context.
func (i inProcessTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	in := *r
	if in.Body == nil {
		in.Body = http.NoBody
	} else if in.ContentLength == 0 {
		in.ContentLength = -1 // unknown
	}
	out := api.NewBufferedResponse(http.Header{})
	i.api.ServeAs(visitorOf(r.Context()), out, &in)
	return &http.Response{StatusCode: out.Status, Header: out.Header(), Body: io.NopCloser(&out.Body), Request: r}, nil
}

package web

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/fleetslots/dispatcher/operators"
)

// newClient is a client of the API of this process, which acts as the visitor of
// each request.
func newClient(api API) *operators.Client {
	c, err := operators.New(operators.Config{URL: "http://inside", Tries: 1, Transport: inProcess{api}})
	if err != nil { // that URL is one
		panic(err)
	}
	return c
}

// get reads a resource without a type of its own, or a path that a visitor wrote.
func (w *Web) get(r *http.Request, path string, query url.Values, answer any) error {
	return w.client.Do(r.Context(), operators.Request{Method: http.MethodGet, Path: path, Query: query}, answer)
}

// post sends a change to the API.
func (w *Web) post(ctx context.Context, path string, body any) error {
	return w.client.Do(ctx, operators.Request{Method: http.MethodPost, Path: path, Body: body}, nil)
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

package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/fleetslots/dispatcher/dispatcher/api"
)

// request is one call of the operators' API.
type request struct {
	method string // empty: GET
	path   string // each name in it escaped, see apiPath
	query  url.Values
	body   any    // nil: none
	raw    []byte // instead of body, in that form
	form   string // Content-Type of raw
	key    string // Idempotency-Key; empty: none
}

// apiPath joins names to a path of the API.
func apiPath(names ...string) string {
	var path strings.Builder
	path.WriteString("/v1")
	for _, name := range names {
		path.WriteString("/" + url.PathEscape(name))
	}
	return path.String()
}

// ask has the API do something as the operator and decodes its answer. What it
// refuses is an *api.Problem.
func (w *Web) ask(ctx context.Context, who api.Operator, r request, answer any) error {
	var body bytes.Buffer
	form := "application/json"
	if r.raw != nil {
		form = r.form
		body.Write(r.raw)
	} else if r.body != nil {
		if err := json.NewEncoder(&body).Encode(r.body); err != nil {
			return err
		}
	}
	if r.method == "" {
		r.method = http.MethodGet
	}
	address := r.path
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	in, err := http.NewRequestWithContext(ctx, r.method, address, &body)
	if err != nil {
		return err
	}
	in.Header.Set("Content-Type", form)
	if r.key != "" {
		in.Header.Set("Idempotency-Key", r.key)
	}
	out := &recorded{header: http.Header{}, status: http.StatusOK}
	w.options.API.Inside(who, out, in)
	if out.status >= http.StatusBadRequest {
		p := &api.Problem{Status: out.status}
		if err := json.Unmarshal(out.body.Bytes(), p); err != nil {
			return fmt.Errorf("%s %s: status %d", r.method, r.path, out.status)
		}
		return p
	}
	if answer == nil || out.body.Len() == 0 {
		return nil
	}
	return json.Unmarshal(out.body.Bytes(), answer)
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

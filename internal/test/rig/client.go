package rig

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// Client sends requests of operators and devices to a replica. The methods that prepare a test (Do, PutPool,
// CreateBatch, Report) send a request again while the replica asks for that. The other methods return each response.
type Client struct {
	Test
	URL          string
	Admin, Fleet string // the token of an admin, and the fleet token
	operator     *operators.Client
}

// NewClient returns a client for the replica at the URL base.
func NewClient(t *testing.T, base, admin, fleet string) Client {
	t.Helper()
	operator, err := operators.New(operators.Config{URL: base, Token: admin, MaxTries: math.MaxInt, Transport: http.DefaultTransport})
	must.Succeed(t, err)
	return Client{Test: Test{t}, URL: base, Admin: admin, Fleet: fleet, operator: operator}
}

// Operate sends a request of the admin, which must succeed, and returns the body of the response. A body that is a
// string is sent as it is, any other body as JSON.
func (c Client) Operate(method, path string, body any) []byte {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), await.Patience)
	defer cancel()
	request := operators.Request{Method: method, Path: path, Body: body, Idempotent: true}
	if text, ok := body.(string); ok {
		request.Body, request.ContentType = nil, "application/json"
		request.OpenBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
	}
	if method == http.MethodPost {
		request.Key = rand.Text()
	}
	answer, err := c.operator.Call(ctx, request)
	if err != nil {
		c.Fatalf("%s %s: %v", method, path, err)
	}
	return answer
}

// Do sends a request of the admin, like Operate, and decodes the response into answer unless answer is nil.
func (c Client) Do(method, path string, body, answer any) {
	c.Helper()
	if text := c.Operate(method, path, body); answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			c.Fatalf("%s %s: %v: %.300s", method, path, err, text)
		}
	}
}

// PutPool creates or changes a pool with these settings.
func (c Client) PutPool(name string, settings any) {
	c.Helper()
	c.Do(http.MethodPut, "/v1/pools/"+name, settings, nil)
}

// CreateBatch creates a batch from this body and returns its id.
func (c Client) CreateBatch(body any) int64 {
	c.Helper()
	var made struct{ ID int64 }
	c.Do(http.MethodPost, "/v1/batches", body, &made)
	return made.ID
}

// SendReport sends a report of a device and returns the response, whatever it is.
func (c Client) SendReport(device string, body any) Response {
	c.Helper()
	return c.Call(http.MethodPost, "/v1/devices/"+device+"/report", c.Fleet, body)
}

// Report sends a report of a device. It sends the report again while the dispatcher cannot decide it, as a device does.
func (c Client) Report(device string, body any) (reply devices.Reply) {
	c.Helper()
	c.Await("an answer to "+device, func() bool {
		a := c.SendReport(device, body)
		if a.Status == http.StatusServiceUnavailable {
			return false
		}
		reply = devices.Reply{}
		a.Expect(http.StatusOK).Decode(&reply)
		return reply.Reason != devices.ReasonUnavailable
	}, &reply)
	return reply
}

// Grant is a task that a reply granted.
type Grant devices.Task

// ReportUntilGranted sends reports of an idle device until a task is granted. It repeats a report only if no slot was
// free, or if the dispatcher could not decide.
func (c Client) ReportUntilGranted(device string) Grant {
	c.Helper()
	var reply devices.Reply
	c.Await("a grant for "+device, func() bool {
		reply = c.Report(device, `{"id":"g"}`)
		return reply.Reason != devices.ReasonFull
	}, &reply)
	if reply.Task == nil {
		c.Fatalf("%s: reason %s, want granted", device, reply.Reason)
	}
	return Grant(*reply.Task)
}

// Result returns the body of a report with the result of the task. The text more is added to the fields of the result.
func (g Grant) Result(status, more string) string {
	return fmt.Sprintf(`{"id":"r","results":[{"task":%d,"token":%d,"status":%q%s}],"accept":false}`, g.ID, g.Token, status, more)
}

// Call sends a request with this token. A body that is a string or a reader is sent as it is, any other body as JSON.
func (c Client) Call(method, path, token string, body any) Response {
	c.Helper()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	return c.Send(method, path, header, body)
}

// Get reads a path with the token of the admin.
func (c Client) Get(path string) Response {
	c.Helper()
	return c.Call(http.MethodGet, path, c.Admin, nil)
}

// Send sends a request with these header fields. It never follows a redirect.
func (c Client) Send(method, path string, header http.Header, body any) Response {
	c.Helper()
	request := c.NewRequest(method, path, body)
	if header != nil {
		request.Header = header
	}
	return c.DoRequest(request)
}

// NewRequest returns a request without header fields for this path.
func (c Client) NewRequest(method, path string, body any) *http.Request {
	c.Helper()
	request, err := http.NewRequestWithContext(c.Context(), method, c.URL+path, c.reader(body))
	c.Must(err)
	return request
}

// reader returns a reader of the body of a request, or nil.
func (c Client) reader(body any) io.Reader {
	c.Helper()
	switch content := body.(type) {
	case nil:
		return nil
	case string:
		return strings.NewReader(content)
	case io.Reader:
		return content
	}
	var content bytes.Buffer
	to := json.NewEncoder(&content)
	to.SetEscapeHTML(false) // devices do not escape HTML
	c.Must(to.Encode(body))
	return &content
}

// DoRequest sends a request. It never follows a redirect.
func (c Client) DoRequest(request *http.Request) Response {
	c.Helper()
	response, err := http.DefaultTransport.RoundTrip(request)
	c.Must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	c.Must(err)
	return Response{T: c.T, Line: request.Method + " " + request.URL.RequestURI(), Status: response.StatusCode, Header: response.Header, Body: body}
}

// Serve starts a listener for the handler and returns a client for it, with the same tokens.
func (c Client) Serve(handler http.Handler) Client {
	c.Helper()
	server := httptest.NewServer(handler)
	c.Cleanup(server.Close)
	return NewClient(c.T, server.URL, c.Admin, c.Fleet)
}

// Response is a response of a replica.
type Response struct {
	*testing.T
	Line   string // method and path of the request
	Status int
	Header http.Header
	Body   []byte
}

// Expect fails the test if the response does not have this status. It returns the response.
func (a Response) Expect(status int) Response {
	a.Helper()
	if a.Status != status {
		a.Fatalf("%s: status %d, want %d: %.300s", a.Line, a.Status, status, a.Body)
	}
	return a
}

// Decode decodes the JSON body of the response into target.
func (a Response) Decode(target any) {
	a.Helper()
	if err := json.Unmarshal(a.Body, target); err != nil {
		a.Fatalf("%s: %v: %.300s", a.Line, err, a.Body)
	}
}

// Object returns the body of the response as a JSON object.
func (a Response) Object() (fields map[string]any) {
	a.Helper()
	a.Decode(&fields)
	return fields
}

// Cookies returns the cookies that the response sets.
func (a Response) Cookies() []*http.Cookie { return (&http.Response{Header: a.Header}).Cookies() }

// CSVRows returns the rows of a response in CSV.
func (a Response) CSVRows() [][]string {
	a.Helper()
	rows, err := csv.NewReader(bytes.NewReader(a.Body)).ReadAll()
	if err != nil {
		a.Fatalf("%s: %v: %.300s", a.Line, err, a.Body)
	}
	return rows
}

// ExpectProblem fails the test unless the response is a problem (RFC 9457) with this status and code, whose detail
// contains all mentions. It returns the problem.
func (a Response) ExpectProblem(status int, code string, mentions ...string) (p operators.Problem) {
	a.Helper()
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		a.Fatalf("%s: %d, content type %q, want a problem: %.300s", a.Line, a.Status, got, a.Body)
	}
	a.Decode(&p)
	if a.Status != status || p.Status != status || p.Code != code {
		a.Errorf("%s: status %d, want %d with code %q: %.300s", a.Line, a.Status, status, code, a.Body)
	}
	if p.Type != "about:blank" || p.Title != http.StatusText(status) || p.Detail == "" {
		a.Errorf("%s: not a whole problem: %.300s", a.Line, a.Body)
	}
	for _, part := range mentions {
		if !strings.Contains(p.Detail, part) {
			a.Errorf("%s: the problem does not name %q: %q", a.Line, part, p.Detail)
		}
	}
	return p
}

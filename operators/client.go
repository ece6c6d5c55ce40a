package operators

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Media types of the API.
const (
	TypeJSON   = "application/json"
	TypeCSV    = "text/csv"
	TypeNDJSON = "application/x-ndjson"
	typeEvents = "text/event-stream"
)

// Timeouts of a client whose Config has no Transport.
const (
	connectTimeout = 10 * time.Second
	headerTimeout  = 10 * time.Minute // time for the response headers: a streamed batch of a million tasks is answered only after its commit
)

// Config has the address of the server, the operator's token and the options of a Client.
type Config struct {
	URL   string // http or https; its path, if any, is put before each API path, for a server behind a proxy
	Token string // the operator's token
	Agent string // value of the header User-Agent
	// OnRetry is called before a request is sent again, with the error and the pause. It may be nil.
	OnRetry func(err error, wait time.Duration)
	// MaxTries is the maximum number of times that a repeatable request is sent. If MaxTries is 0, the maximum is 6.
	MaxTries int
	// Transport carries the requests. If Transport is nil, the client uses its own http.Transport.
	Transport http.RoundTripper
}

// Client calls the operators' API of one server. It is safe for concurrent use.
type Client struct {
	Pools    Pools `scope:"all"`
	Leases   Leases
	Batches  Batches   `scope:"batch"`
	Tasks    Tasks     `scope:"task"`
	Devices  Devices   `scope:"none"`
	Profiles Profiles  `scope:"none"`
	Limits   LimitSets `scope:"all"`
	Tokens   Tokens    `scope:"none"`
	Events   Events    `scope:"all"`
	Search   Search    `scope:"all"`

	table  map[string]Operation // the key of an operation is its ID
	config Config
	base   *url.URL
	http   *http.Client
}

// New returns a client for the server at config.URL. It returns an error for a URL that is not http or https, or has no host.
func New(config Config) (*Client, error) {
	base, err := url.Parse(config.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a server, such as http://127.0.0.1:8080", config.URL)
	}
	base.Path, base.RawPath = strings.TrimSuffix(base.Path, "/"), ""
	if config.Transport == nil {
		config.Transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: connectTimeout}).DialContext,
			TLSHandshakeTimeout:   connectTimeout,
			ResponseHeaderTimeout: headerTimeout,
			ForceAttemptHTTP2:     true,
			ExpectContinueTimeout: time.Second,
		}
	}
	c := &Client{config: config, base: base, http: &http.Client{
		Transport: config.Transport,
		// The client follows no redirects, because a redirect could send the token to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	c.Pools.client, c.Leases.client, c.Batches.client, c.Tasks.client = c, c, c, c
	c.Devices.client, c.Limits.client, c.Events.client = c, c, c
	c.initializeCalls()
	return c, nil
}

// URL returns the address of the server.
func (c *Client) URL() string { return c.base.String() }

// Request is one call of the API.
type Request struct {
	Method string
	Path   string // begins with /v1/; the function Path builds it and escapes each name
	Query  url.Values
	Body   any // sent as JSON; nil means that there is no body
	// OpenBody opens a body that is streamed without conversion, with the media type ContentType.
	OpenBody    func() (io.ReadCloser, error)
	ContentType string
	NoRetry     bool   // OpenBody works only once, so the request cannot be sent again
	Idempotent  bool   // the request may be sent again, because the server executes it only once
	Key         string // header Idempotency-Key; empty means that the header is not sent
	Accept      string // header Accept; empty means that the header is not sent and the server answers in JSON
	LastEventID string // header Last-Event-ID; empty means that the header is not sent
	Prefer      string // header Prefer; empty means that the header is not sent
}

// Path joins /v1 and names with slashes to an API path. It escapes each name.
func Path(names ...string) string {
	var path strings.Builder
	path.WriteString("/v1")
	for _, name := range names {
		path.WriteString("/" + url.PathEscape(name))
	}
	return path.String()
}

// Call sends a request and returns the body of the response, or nil if the body is empty. If the server refuses the request, the error is
// a *Problem. If the request did not reach the server, or the response was lost, the error is a *LostError.
func (c *Client) Call(ctx context.Context, request Request) (answer json.RawMessage, err error) {
	err = c.sendAndRead(ctx, request, func(body io.Reader) error {
		text, err := io.ReadAll(body)
		if len(text) > 0 {
			answer = text
		}
		return err
	})
	return answer, err
}

// Do sends a request and decodes the body of the response, if there is one, into the value that answer points to. If
// answer is nil, the body is discarded. Do returns the same errors as Call.
func (c *Client) Do(ctx context.Context, request Request, answer any) error {
	text, err := c.Call(ctx, request)
	if err != nil || answer == nil || text == nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: %w", request.Method, request.Path, err)
	}
	return nil
}

// Get sends a GET request for path with query and returns the body of the response, or nil if the body is empty. It returns the same
// errors as Call.
func (c *Client) Get(ctx context.Context, path string, query url.Values) (answer json.RawMessage, err error) {
	return c.Call(ctx, Request{Method: http.MethodGet, Path: path, Query: query})
}

// Copy sends a request and writes the body of its streamed response to out. After a part of the body has arrived, Copy does not send the
// request again.
func (c *Client) Copy(ctx context.Context, request Request, out io.Writer) error {
	return c.sendAndRead(ctx, request, func(body io.Reader) error {
		if _, err := io.Copy(out, body); err != nil {
			return &partialBodyError{fmt.Errorf("ended early, the output is incomplete: %w", err)}
		}
		return nil
	})
}

// sendAndRead sends a request and passes the body of a 2xx response to readBody. Any other status becomes a *Problem. The method
// sendWithRetries decides whether the request is sent again.
func (c *Client) sendAndRead(ctx context.Context, request Request, readBody func(io.Reader) error) error {
	return c.sendWithRetries(ctx, request, func() error {
		response, err := c.sendOnce(ctx, request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode/100 != 2 {
			return readProblem(response)
		}
		err = readBody(response.Body)
		if broken, ok := errors.AsType[*partialBodyError](err); ok {
			return broken
		}
		if err != nil {
			return &LostError{URL: c.URL(), Err: err, Reached: true, ReadOnly: request.Method == http.MethodGet}
		}
		return nil
	})
}

// sendOnce sends apiRequest once and returns the response, even if its HTTP status is an error.
func (c *Client) sendOnce(ctx context.Context, apiRequest Request) (*http.Response, error) {
	request, err := c.newRequest(ctx, apiRequest)
	if err != nil {
		return nil, err
	}
	var connected atomic.Bool // a connection is ready, including the TLS handshake
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	response, err := c.http.Do(request.WithContext(httptrace.WithClientTrace(ctx, trace)))
	if err == nil {
		return response, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, &LostError{URL: c.URL(), Err: unwrapURLError(err), Reached: connected.Load(), ReadOnly: apiRequest.Method == http.MethodGet}
}

func (c *Client) newRequest(ctx context.Context, apiRequest Request) (*http.Request, error) {
	body, content, err := apiRequest.encodeBody()
	if err != nil {
		return nil, err
	}
	address := c.base.String() + apiRequest.Path
	if len(apiRequest.Query) > 0 {
		address += "?" + apiRequest.Query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, apiRequest.Method, address, body)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"Content-Type": content, "Accept": apiRequest.Accept, "Idempotency-Key": apiRequest.Key, "Last-Event-ID": apiRequest.LastEventID, "Prefer": apiRequest.Prefer, "User-Agent": c.config.Agent,
	} {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	if c.config.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.config.Token)
	}
	return request, nil
}

// encodeBody opens the body of the request and returns its media type. body is nil if the request has none.
func (r Request) encodeBody() (body io.Reader, mediaType string, err error) {
	switch {
	case r.OpenBody != nil:
		body, err = r.OpenBody()
		return body, r.ContentType, err
	case r.Body != nil:
		text, err := json.Marshal(r.Body)
		return bytes.NewReader(text), TypeJSON, err
	}
	return nil, "", nil
}

// unwrapURLError removes the method and the URL from an error of net/http, because the caller knows them.
func unwrapURLError(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

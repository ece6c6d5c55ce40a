package simulator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// httpTimeout is how long a device waits for an answer over HTTP. heldTimeout is the additional time for which the
// device waits for an answer that the server may hold (long poll).
const (
	httpTimeout = 20 * time.Second
	heldTimeout = 10 * time.Second
)

// maxReply is the length of the longest reply that a device reads, in bytes.
const maxReply = 1 << 20

// newHTTPClient returns a client that a fleet shares. It never follows redirects.
func newHTTPClient(idle int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConns:        idle,
			MaxIdleConnsPerHost: idle,
			IdleConnTimeout:     90 * time.Second,
			TLSHandshakeTimeout: 5 * time.Second,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// httpLink sends reports as POST requests.
type httpLink struct {
	client   *http.Client
	replicas *replicas
	path     string
	token    string
}

func newHTTPLink(client *http.Client, r *replicas, device, token string) *httpLink {
	return &httpLink{client: client, replicas: r, token: token, path: "/v1/devices/" + url.PathEscape(device) + "/report"}
}

// open does nothing: send opens a connection when it needs one.
func (l *httpLink) open(context.Context, chan<- linkMessage) (hangUp func()) { return func() {} }

func (l *httpLink) send(ctx context.Context, p outgoingReport, inbox chan<- linkMessage) {
	go func() {
		base, position := l.replicas.current()
		a := l.exchange(ctx, base+l.path, p)
		if a.kind == failed && !p.closeEarly {
			l.replicas.failOver(position)
		}
		if a.id = p.id; a.kind == answered {
			a.id = a.reply.Re // the reply contains the report id, as over MQTT
		}
		a.garbage = p.id == ""
		if !p.closeEarly {
			deliver(ctx, inbox, a)
		}
	}()
}

func (l *httpLink) exchange(ctx context.Context, url string, p outgoingReport) linkMessage {
	timeout := httpTimeout
	if p.holdTime > 0 {
		timeout = p.holdTime + heldTimeout
	}
	ctx, hangUp := context.WithTimeout(ctx, timeout)
	defer hangUp()
	if p.closeEarly {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			WroteRequest: func(httptrace.WroteRequestInfo) { hangUp() },
		})
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(p.body))
	if err != nil {
		return linkMessage{kind: failed, err: err}
	}
	req.Header.Set("Authorization", "Bearer "+l.token)
	req.Header.Set("Content-Type", "application/json")
	if p.holdTime > 0 {
		req.Header.Set("Prefer", fmt.Sprintf("wait=%d", int(p.holdTime.Seconds())))
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return linkMessage{kind: failed, err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	return readReply(resp)
}

func readReply(resp *http.Response) linkMessage {
	a := linkMessage{status: resp.StatusCode, kind: kindOfStatus(resp.StatusCode), held: resp.Header.Get("Preference-Applied") != ""}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err == nil {
		err = json.Unmarshal(body, &a.reply)
	}
	if err != nil && a.kind == answered {
		return linkMessage{status: resp.StatusCode, kind: failed, err: err}
	}
	a.retryAfter = time.Duration(a.reply.ReportAfterMS) * time.Millisecond
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && a.retryAfter == 0 {
		a.retryAfter = time.Duration(seconds) * time.Second
	}
	return a
}

func kindOfStatus(status int) answerKind {
	switch status {
	case http.StatusOK:
		return answered
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return refused
	case http.StatusUnauthorized, http.StatusForbidden:
		return forbidden
	default:
		return failed
	}
}

// checkURL refuses a text that is not an absolute URL with one of the schemes.
func checkURL(raw string, schemes ...string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return fmt.Errorf("invalid URL: %w", err)
	}
	if u.Host != "" && slices.Contains(schemes, u.Scheme) {
		return nil
	}
	return fmt.Errorf("URL %q: want %s://host:port", u.Redacted(), strings.Join(schemes, ":// or "))
}

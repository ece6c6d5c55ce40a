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
	"strconv"
	"time"
)

// httpTimeout is the time for which a device waits for an answer over HTTP. For an answer that the server may hold (long poll), the device
// waits for heldTimeout more.
const (
	httpTimeout = 20 * time.Second
	heldTimeout = 10 * time.Second
)

const maxReply = 1 << 20

// newHTTPClient returns a client that a fleet shares. It keeps at most maxIdle idle connections and never follows redirects.
func newHTTPClient(maxIdle int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConns:        maxIdle,
			MaxIdleConnsPerHost: maxIdle,
			IdleConnTimeout:     90 * time.Second,
			TLSHandshakeTimeout: 5 * time.Second,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type httpLink struct {
	client   *http.Client
	replicas *replicaURLs
	path     string
	token    string
}

// newHTTPLink returns the link of a device that reports with this token to one of the replicas in targets.
func newHTTPLink(client *http.Client, targets *replicaURLs, device, token string) *httpLink {
	return &httpLink{client: client, replicas: targets, token: token, path: "/v1/devices/" + url.PathEscape(device) + "/report"}
}

// open does nothing: send opens a connection when it needs one.
func (l *httpLink) open(context.Context, chan<- linkMessage) (hangUp func()) { return func() {} }

func (l *httpLink) send(ctx context.Context, outgoing outgoingReport, deviceInbox chan<- linkMessage) {
	go func() {
		base, position := l.replicas.current()
		a := l.postReport(ctx, base+l.path, outgoing)
		if a.kind == failed && !outgoing.closeEarly {
			l.replicas.failOver(position)
		}
		if a.id = outgoing.id; a.kind == answered {
			a.id = a.reply.Re // the reply contains the report id, as over MQTT
		}
		a.garbage = outgoing.id == ""
		if !outgoing.closeEarly {
			deliverMessage(ctx, deviceInbox, a)
		}
	}()
}

func (l *httpLink) postReport(ctx context.Context, url string, outgoing outgoingReport) linkMessage {
	timeout := httpTimeout
	if outgoing.holdTime > 0 {
		timeout = outgoing.holdTime + heldTimeout
	}
	ctx, hangUp := context.WithTimeout(ctx, timeout)
	defer hangUp()
	if outgoing.closeEarly {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			WroteRequest: func(httptrace.WroteRequestInfo) { hangUp() },
		})
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(outgoing.body))
	if err != nil {
		return linkMessage{kind: failed, err: err}
	}
	req.Header.Set("Authorization", "Bearer "+l.token)
	req.Header.Set("Content-Type", "application/json")
	if outgoing.holdTime > 0 {
		req.Header.Set("Prefer", fmt.Sprintf("wait=%d", int(outgoing.holdTime.Seconds())))
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return linkMessage{kind: failed, err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	return readReply(resp)
}

func readReply(response *http.Response) linkMessage {
	a := linkMessage{status: response.StatusCode, kind: answerKindOfStatus(response.StatusCode), held: response.Header.Get("Preference-Applied") != ""}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReply))
	if err == nil {
		err = json.Unmarshal(body, &a.reply)
	}
	if err != nil && a.kind == answered {
		return linkMessage{status: response.StatusCode, kind: failed, err: err}
	}
	a.retryAfter = time.Duration(a.reply.ReportAfterMS) * time.Millisecond
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && a.retryAfter == 0 {
		a.retryAfter = time.Duration(seconds) * time.Second
	}
	return a
}

func answerKindOfStatus(httpStatus int) answerKind {
	switch httpStatus {
	case http.StatusOK:
		return answered
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return refused
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return forbidden
	default:
		return failed
	}
}

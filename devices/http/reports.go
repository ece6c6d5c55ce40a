// Package http is the HTTP transport of reports. The decisions are made by devices.Handler.
package http

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

const transport = "http" // label in metrics

// Options configures Reports. Handler, OnRefused and Logger are required.
type Options struct {
	Handler     devices.Handler
	OnRefused   func(r *http.Request, device string, err error) // called for each refusal with ReasonForbidden
	Logger      *slog.Logger
	LongPollMax time.Duration // longest wait of a parked report (long poll), in whole seconds. If it is 0, no report is parked.
	MaxReports  int           // maximum number of concurrent reports without parked ones. More are refused with busy_server. Default 512
}

// Reports answers reports of devices. It uses plain net/http because with a million devices
// this is the only hot path.
type Reports struct {
	Options

	inProgress chan struct{} // bounds the concurrent reports, with one element for each
	bodies     *bodyLimiter  // bounds the report bodies that are still incomplete
}

// New returns the handler for the pattern POST /v1/devices/{device}/report.
func New(o Options) *Reports {
	o.MaxReports = cmp.Or(o.MaxReports, 512)
	return &Reports{Options: o, inProgress: make(chan struct{}, o.MaxReports), bodies: newBodyLimiter(o.MaxReports)}
}

// ServeHTTP answers one report. The reply is sent with its Content-Length, so that a device
// recognizes a truncated reply.
func (h *Reports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	reply, err := h.answerReport(w, r)
	if err != nil {
		h.refuse(w, r, err, started)
		return
	}
	held := time.Duration(reply.HeldMS) * time.Millisecond
	h.Handler.CountReport(transport, string(reply.Reason), time.Since(started)-held)
	w.Header().Set("Cache-Control", "no-store")
	writeResponse(w, http.StatusOK, "application/json", reply.Encode())
}

func (h *Reports) answerReport(w http.ResponseWriter, r *http.Request) (devices.Reply, error) {
	device, err := devices.ParseID(r.PathValue("device"))
	if err != nil {
		return devices.Reply{}, err
	}
	caller, err := h.authenticate(r, device)
	if err != nil {
		return devices.Reply{}, err
	}
	body, err := h.bodies.read(w, r, caller)
	if err != nil {
		return devices.Reply{}, err
	}
	report, err := devices.DecodeReport(body)
	if err != nil {
		return devices.Reply{}, err
	}
	if err := h.enter(); err != nil {
		return devices.Reply{}, err
	}
	wait := min(PreferredWait(r.Header), h.LongPollMax).Truncate(time.Second)
	if wait == 0 {
		defer h.leave()
		return h.Handler.HandleReport(r.Context(), caller, report)
	}
	leave := sync.OnceFunc(h.leave)
	defer leave()
	reply, couldWait, err := h.Handler.HandleWaiting(r.Context(), caller, report, wait, func() {
		leave()
		extendWriteDeadline(w, wait)
	})
	if couldWait {
		w.Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(wait.Seconds())))
	}
	return reply, err
}

// enter counts a report as in progress until leave is called. It refuses the report if MaxReports are in progress.
func (h *Reports) enter() error {
	select {
	case h.inProgress <- struct{}{}:
		return nil
	default:
		return busyError("too many reports at once")
	}
}

func (h *Reports) leave() { <-h.inProgress }

// authenticate returns the caller of the report. It runs before the body is read, because a device may send the body slowly.
func (h *Reports) authenticate(r *http.Request, device devices.ID) (devices.Caller, error) {
	if err := h.enter(); err != nil {
		return devices.Caller{}, err
	}
	defer h.leave()
	return h.Handler.Authenticate(r.Context(), device, bearer(r))
}

// extendWriteDeadline extends the write deadline by wait, because the server's deadline is meant for
// requests that are answered at once. The read deadline no longer matters: the body is read.
func extendWriteDeadline(w http.ResponseWriter, wait time.Duration) {
	answerBy := time.Now().Add(wait + devices.AnswerAfterWait)
	_ = http.NewResponseController(w).SetWriteDeadline(answerBy) // An error means that w has no deadline, such as the recorder of a test.
}

// Bearer returns the bearer token of an Authorization header, or "" if the header has none.
func Bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func bearer(r *http.Request) string { return Bearer(r.Header.Get("Authorization")) }

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Type          string `json:"type"`
	Title         string `json:"title"`
	Status        int    `json:"status"`
	Code          string `json:"code"`
	Detail        string `json:"detail"`
	ReportAfterMS int64  `json:"report_after_ms"`
}

// Refuse writes the refusal r as the HTTP response. after is the time after which the device
// should report again.
func Refuse(w http.ResponseWriter, r devices.ReportRefusal, after time.Duration) {
	body, _ := json.Marshal(problem{"about:blank", http.StatusText(r.Status), r.Status, r.Code, r.Detail, after.Milliseconds()}) // Plain fields: it cannot fail.
	switch r.Status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="dispatcher"`)
	}
	writeResponse(w, r.Status, "application/problem+json", body)
}

func (h *Reports) refuse(w http.ResponseWriter, r *http.Request, err error, started time.Time) {
	refusal, device := devices.RefusalOf(err), r.PathValue("device")
	if refusal.Status >= http.StatusInternalServerError {
		h.Logger.WarnContext(r.Context(), "report not answered", "device", device, "err", err)
	}
	if refusal.Reason == devices.ReasonForbidden {
		h.OnRefused(r, device, err)
	}
	h.Handler.CountReport(transport, refusal.Code, time.Since(started))
	Refuse(w, refusal, h.Handler.AfterRefusal(refusal.Reason))
}

func writeResponse(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func busyError(detail string) error {
	return &devices.Error{Reason: devices.ReasonBusyServer, Code: string(devices.ReasonBusyServer), Detail: detail}
}

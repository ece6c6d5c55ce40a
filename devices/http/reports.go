// Package http is the HTTP transport of reports. It decides nothing about tasks. Its Intake bounds what each device uses of a replica, also
// for package hawkbit.
package http

import (
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/pace"
)

const transport = "http" // label in metrics

// Options configures an Intake. Handler, OnRefused and Logger are required.
type Options struct {
	Handler   devices.Handler
	OnRefused func(r *http.Request, device string, err error) // called for each refusal with ReasonForbidden
	AddressOf func(r *http.Request) netip.Addr                // returns the address of the sender; nil means that it is not known
	Logger    *slog.Logger

	// Authenticate returns the caller of the report r, which names device in its path. If Authenticate is nil, Handler.Authenticate is
	// used.
	Authenticate func(r *http.Request, device devices.ID, token string) (devices.Caller, error)
	LongPollMax  time.Duration // longest wait of a parked report (long poll), in whole seconds. If it is 0, no report is parked.
	Pace         *pace.Limiter // refuses the excess reports of a device, counted for each Via; nil means no limit
	MaxReports   int           // maximum number of concurrent reports; parked reports do not count. Further reports are refused with busy_server. Default 512
}

// Reports answers reports of devices. It uses plain net/http, because it is a hot path.
type Reports struct{ *Intake }

// New returns the handler for the pattern POST /v1/devices/{device}/report.
func New(options Options) *Reports { return &Reports{NewIntake(options)} }

// ServeHTTP answers one report.
func (h *Reports) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	started := time.Now()
	reply, err := h.answerReport(response, request)
	if err != nil {
		h.Refuse(response, request, transport, err, started)
		return
	}
	held := time.Duration(reply.HeldMS) * time.Millisecond
	h.Handler.CountReport(transport, string(reply.Reason), time.Since(started)-held)
	response.Header().Set("Cache-Control", "no-store")
	WriteResponse(response, http.StatusOK, "application/json", reply.Encode())
}

func (h *Reports) answerReport(response http.ResponseWriter, request *http.Request) (devices.Reply, error) {
	device, err := devices.ParseID(request.PathValue("device"))
	if err != nil {
		return devices.Reply{}, err
	}
	caller, err := h.Admit(request, device, bearerToken(request))
	if err != nil {
		return devices.Reply{}, err
	}
	body, err := h.ReadBody(response, request, caller)
	if err != nil {
		return devices.Reply{}, err
	}
	report, err := devices.DecodeReport(body)
	if err != nil {
		return devices.Reply{}, err
	}
	if err := h.Enter(); err != nil {
		return devices.Reply{}, err
	}
	wait := min(PreferredWait(request.Header), h.LongPollMax).Truncate(time.Second)
	if wait == 0 {
		defer h.Leave()
		return h.Handler.HandleReport(request.Context(), caller, report)
	}
	leave := sync.OnceFunc(h.Leave)
	defer leave()
	reply, couldWait, err := h.Handler.HandleWaiting(request.Context(), caller, report, wait, func() {
		leave()
		extendWriteDeadline(response, wait)
	})
	if couldWait {
		response.Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(wait.Seconds())))
	}
	return reply, err
}

// extendWriteDeadline moves the write deadline of response to a time after wait. The deadline that the server sets is long enough only for
// requests that are not parked.
func extendWriteDeadline(response http.ResponseWriter, wait time.Duration) {
	answerBy := time.Now().Add(wait + devices.AnswerAfterWait)
	_ = http.NewResponseController(response).SetWriteDeadline(answerBy) // An error means that response has no deadline, as in a test.
}

// Bearer returns the bearer token of an Authorization header, or "" if the header has none.
func Bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func bearerToken(request *http.Request) string { return Bearer(request.Header.Get("Authorization")) }

// WriteRefusal writes refusal as the HTTP response (RFC 9457). after is the time after which the device should report again.
func WriteRefusal(response http.ResponseWriter, refusal devices.ReportRefusal, after time.Duration) {
	body, _ := json.Marshal(struct {
		Type          string `json:"type"`
		Title         string `json:"title"`
		Status        int    `json:"status"`
		Code          string `json:"code"`
		Detail        string `json:"detail"`
		ReportAfterMS int64  `json:"report_after_ms"`
	}{"about:blank", http.StatusText(refusal.Status), refusal.Status, refusal.Code, refusal.Detail, after.Milliseconds()}) // Plain fields: it cannot fail.
	switch refusal.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		response.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	case http.StatusUnauthorized:
		response.Header().Set("WWW-Authenticate", `Bearer realm="dispatcher"`)
	}
	WriteResponse(response, refusal.Status, "application/problem+json", body)
}

// WriteResponse writes body with its Content-Length, so that a device recognizes a truncated response.
func WriteResponse(response http.ResponseWriter, status int, contentType string, body []byte) {
	response.Header().Set("Content-Type", contentType)
	response.Header().Set("Content-Length", strconv.Itoa(len(body)))
	response.WriteHeader(status)
	_, _ = response.Write(body)
}

package http

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Type          string `json:"type"`
	Title         string `json:"title"`
	Status        int    `json:"status"`
	Code          string `json:"code"`
	Detail        string `json:"detail"`
	ReportAfterMS int64  `json:"report_after_ms"`
}

// Refuse tells a device why its report is not answered, and when it is to come
// back.
func Refuse(w http.ResponseWriter, r devices.Refusal, after time.Duration) {
	body, _ := json.Marshal(problem{"about:blank", http.StatusText(r.Status), r.Status, r.Code, r.Detail, after.Milliseconds()}) // plain fields: cannot fail
	switch r.Status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="dispatcher"`)
	}
	write(w, r.Status, "application/problem+json", body)
}

func (h *Reports) refuse(w http.ResponseWriter, r *http.Request, err error, started time.Time) {
	refusal, device := devices.RefusalOf(err), r.PathValue("device")
	if refusal.Status >= http.StatusInternalServerError {
		h.Logger.WarnContext(r.Context(), "report not answered", "device", device, "err", err)
	}
	if refusal.Reason == devices.ReasonForbidden {
		h.Refused(r, device, err)
	}
	h.Handler.CountReport(transport, refusal.Code, time.Since(started))
	Refuse(w, refusal, h.Handler.AfterRefusal(refusal.Reason))
}

func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func busy(detail string) error {
	return &devices.Error{Reason: devices.ReasonBusyServer, Code: devices.CodeBusyServer, Detail: detail}
}

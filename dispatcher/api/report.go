package api

import (
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
)

const maxReports = 512

// reports answers device reports. It is plain net/http: with a million devices
// this is the one path that is hot.
type reports struct {
	dispatcher *dispatcher.Dispatcher
	gate       *gate.Gate
	log        *slog.Logger
	longest    time.Duration // that an answer may wait; 0: none does
	places     chan struct{} // bounds the reports under way, without those that wait
	bodies     *bodies       // bounds those that are not here yet
}

func newReports(options Options) *reports {
	places := options.MaxReports
	if places == 0 {
		places = maxReports
	}
	return &reports{
		dispatcher: options.Dispatcher, gate: options.Gate, log: options.Logger, longest: options.LongPollMax, places: make(chan struct{}, places),
		bodies: newBodies(places),
	}
}

// ServeHTTP answers one report. The reply is written whole, with its length,
// so that a device never takes half of one for all of it.
func (h *reports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	reply, err := h.answer(w, r)
	if err != nil {
		p := asProblem(err)
		if p.Status >= http.StatusInternalServerError {
			h.log.WarnContext(r.Context(), "report not answered", "device", r.PathValue("device"), "err", err)
		}
		note(r.Context(), h.gate, err, gate.Refusal{At: gate.Report, Principal: r.PathValue("device"), From: h.gate.From(r), What: "report"})
		h.dispatcher.CountReport("http", p.Code, time.Since(started))
		p.toDevice(h.dispatcher.AfterRefusal).write(w)
		return
	}
	held := time.Duration(reply.HeldMS) * time.Millisecond
	h.dispatcher.CountReport("http", string(reply.Reason), time.Since(started)-held)
	body := reply.Encode()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(body)
}

func (h *reports) answer(w http.ResponseWriter, r *http.Request) (devices.Reply, error) {
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
	leave, err := h.enter()
	if err != nil {
		return devices.Reply{}, err
	}
	defer leave()
	wait := min(preferredWait(r.Header), h.longest).Truncate(time.Second)
	if wait == 0 {
		return h.dispatcher.HandleReport(r.Context(), caller, report)
	}
	reply, held, err := h.dispatcher.Wait(r.Context(), caller, report, wait, func() {
		leave()
		allowWait(w, wait)
	})
	if held {
		w.Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(wait.Seconds())))
	}
	return reply, err
}

// enter takes one of the places of the reports under way.
func (h *reports) enter() (leave func(), err error) {
	select {
	case h.places <- struct{}{}:
		return sync.OnceFunc(func() { <-h.places }), nil
	default:
		return nil, problem(http.StatusServiceUnavailable, codeBusyServer, "too many reports at once")
	}
}

// authenticate gives its place back before the body is read: that takes as long as the
// device likes.
func (h *reports) authenticate(r *http.Request, device devices.ID) (devices.Caller, error) {
	leave, err := h.enter()
	if err != nil {
		return devices.Caller{}, err
	}
	defer leave()
	return h.dispatcher.Authenticate(r.Context(), device, requestBearer(r))
}

// allowWait moves the deadline for the answer, which is for requests that are
// answered at once. That for reading ended with the body.
func allowWait(w http.ResponseWriter, wait time.Duration) {
	answerBy := time.Now().Add(wait + devices.AnswerAfterWait)
	_ = http.NewResponseController(w).SetWriteDeadline(answerBy) // a test's recorder has none
}

// describeReport puts the report into the contract; its handler is not huma's.
func describeReport(operations huma.API) {
	schemas := operations.OpenAPI().Components.Schemas
	reply := huma.SchemaFromType(schemas, reflect.TypeFor[devices.Reply]())
	report := huma.SchemaFromType(schemas, reflect.TypeFor[reportBody]())
	operations.OpenAPI().AddOperation(&huma.Operation{
		Method: http.MethodPost, Path: "/v1/devices/{device}/report", OperationID: "report",
		Summary:     "Report: results, running tasks, and the question for work",
		Description: "Any Content-Type; the body is JSON of at most 64 KiB and may be empty. Unknown fields are ignored.",
		Tags:        []string{"devices"},
		Security:    []map[string][]string{{"device": {}}},
		Parameters: []*huma.Param{
			{Name: "device", In: "path", Required: true, Schema: &huma.Schema{Type: "string", MaxLength: new(128)}},
			{
				Name: "Prefer", In: "header", Schema: &huma.Schema{Type: "string"}, Example: "wait=25",
				Description: "wait=25 (RFC 7240) lets an answer without a task wait for up to so many seconds, or the server's limit: " +
					"it comes as soon as there is a task. A newer report of the device ends the older one with none.",
			},
		},
		RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{"application/json": {Schema: report}}},
		Responses: map[string]*huma.Response{
			"200": {Description: "The reply", Headers: map[string]*huma.Param{
				"Preference-Applied": {Schema: &huma.Schema{Type: "string"}, Description: "wait=25: the answer could wait so long; absent without Prefer, and when too many wait already"},
			}, Content: map[string]*huma.MediaType{"application/json": {Schema: reply}}},
			"default": problemResponse(operations),
		},
	})
}

// reportBody documents what devices.DecodeReport takes.
type reportBody struct {
	_          struct{}       `additionalProperties:"true"`
	ID         string         `json:"id,omitempty" maxLength:"128" doc:"Chosen by the device, unique over reboots; echoed in re"`
	Results    []reportResult `json:"results,omitempty" maxItems:"100"`
	Running    []reportRun    `json:"running,omitempty" maxItems:"100"`
	Accept     bool           `json:"accept,omitempty" default:"true" doc:"false: reporting only, nothing is granted"`
	Attributes map[string]any `json:"attributes,omitempty" doc:"Merged (RFC 7396) into the device's"`
}

type reportResult struct {
	_            struct{} `additionalProperties:"true"`
	Task         int64    `json:"task" minimum:"1"`
	Token        int64    `json:"token" minimum:"1"`
	Status       string   `json:"status" enum:"succeeded,failed,rejected,returned"`
	Output       any      `json:"output,omitempty" doc:"At most 32 KiB"`
	Error        string   `json:"error,omitempty"`
	RetryAfterMS int64    `json:"retry_after_ms,omitempty" minimum:"0" maximum:"86400000" doc:"With returned"`
}

type reportRun struct {
	_        struct{} `additionalProperties:"true"`
	Task     int64    `json:"task" minimum:"1"`
	Token    int64    `json:"token" minimum:"1"`
	Progress float64  `json:"progress,omitempty" minimum:"0" maximum:"1"`
}

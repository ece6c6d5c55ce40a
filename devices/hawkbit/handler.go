package hawkbit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
)

const transport = string(devices.WireHawkbit) // label in metrics

// Ledger keeps the newest action of each device. Package app implements it with the store.
type Ledger interface {
	// Action returns the newest action of a device. If the device had none, its ID is 0.
	Action(ctx context.Context, device devices.ID) (Action, error)
	// UpdateAction updates the newest action of a device from the grant that the device holds. task and token identify the grant, and are 0 if the
	// device holds none. A grant that is newer than the action gets a new action. hasOverrun is true if UpdateAction found that the grant of an
	// open action had ended without a result.
	UpdateAction(ctx context.Context, device devices.ID, task, token int64) (action Action, hasOverrun bool, err error)
	// EndAction records that the device reported the end of an action.
	EndAction(ctx context.Context, device devices.ID, id int64, isSuccess bool) error
	// RecordAttributes records that the device has sent its attributes.
	RecordAttributes(ctx context.Context, device devices.ID) error
	// WithdrawCancel withdraws the request to stop the task of a grant.
	WithdrawCancel(ctx context.Context, task, token int64) error
}

// Action is a grant as DDI clients know it, under a number that fits into 32 bits.
type Action struct {
	ID             int64
	Task, Token    int64
	IsOpen         bool // the device has not reported the end of the action, and no end of its grant was found
	IsInstalled    bool // the device reported that the action succeeded
	AsksAttributes bool
	Kind           string          // kind of work, from the batch of the task
	Payload        json.RawMessage // nil if the device cannot read the payload of the task. A payload that is no deployment is sent as metadata
	Attributes     json.RawMessage // attributes of the device
}

// Options configures a Handler. Every field but PublicURL and FromProxy is required.
type Options struct {
	Intake    *devicehttp.Intake
	Ledger    Ledger
	Tenant    string                   // the only tenant: the first segment of every path
	PublicURL string                   // start of the links in answers; empty: from the Host of the request
	FromProxy func(*http.Request) bool // reports whether a trusted proxy sent the request; nil: none is trusted
	// AllowGateway is false if the fleet token may only enrol devices, because a DDI client cannot receive a token of its own.
	AllowGateway bool
	OnOverrun    func(device devices.ID, action int64) // called for each grant of an open action that had ended without a result
}

// Handler answers the requests of DDI clients.
type Handler struct{ Options }

// New returns a Handler with these options.
func New(options Options) *Handler { return &Handler{options} }

// Register adds the paths of DDI to mux.
func (h *Handler) Register(mux *http.ServeMux) {
	base := "/" + h.Tenant + "/controller/v1/{device}"
	for _, route := range []struct {
		pattern string
		answer  func(*exchange) (answer, error)
	}{
		{"GET " + base, (*exchange).poll},
		{"PUT " + base + "/configData", (*exchange).putConfig},
		{"GET " + base + "/deploymentBase/{action}", (*exchange).getDeployment},
		{"POST " + base + "/deploymentBase/{action}/feedback", (*exchange).postFeedback},
		{"GET " + base + "/cancelAction/{action}", (*exchange).getCancelAction},
		{"POST " + base + "/cancelAction/{action}/feedback", (*exchange).postCancelFeedback},
		{"GET " + base + "/installedBase/{action}", (*exchange).answerInstalledDeployment},
	} {
		mux.HandleFunc(route.pattern, func(response http.ResponseWriter, request *http.Request) { h.serve(response, request, route.answer) })
	}
}

// answer is the answer to a request that was not refused.
type answer struct {
	status int
	body   any // nil: no body
}

// exchange is one admitted request, and the state of its handling.
type exchange struct {
	*Handler

	response http.ResponseWriter
	request  *http.Request
	caller   devices.Caller
	action   int64          // the number of the action in the path; 0 if the path has none or it is invalid
	reason   devices.Reason // reason of the last reply to a report that renewed no grant, for metrics; ReasonNone before
}

// serve answers one request.
func (h *Handler) serve(response http.ResponseWriter, request *http.Request, handle func(*exchange) (answer, error)) {
	started := time.Now()
	x := &exchange{Handler: h, response: response, request: request, reason: devices.ReasonNone}
	got, err := x.run(handle)
	var body []byte
	if err == nil && got.body != nil {
		body, err = encodeJSON(got.body)
	}
	if err != nil {
		h.Intake.Refuse(response, request, transport, err, started)
		return
	}
	h.Intake.Handler.CountReport(transport, string(x.reason), time.Since(started))
	response.Header().Set("Cache-Control", "no-store")
	devicehttp.WriteResponse(response, got.status, "application/hal+json", body)
}

// run admits the request and handles it.
func (x *exchange) run(handle func(*exchange) (answer, error)) (answer, error) {
	device, err := devices.ParseID(x.request.PathValue("device"))
	if err != nil {
		return answer{}, err
	}
	if err := x.authenticate(device); err != nil {
		return answer{}, err
	}
	x.action, _ = strconv.ParseInt(x.request.PathValue("action"), 10, 32)
	return handle(x)
}

// authenticate authenticates the request by its header Authorization, and sets the caller. The scheme TargetToken carries the device's own
// token, and the scheme GatewayToken carries the fleet token.
func (x *exchange) authenticate(device devices.ID) error {
	scheme, token, _ := strings.Cut(x.request.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	isGateway := strings.EqualFold(scheme, "GatewayToken")
	if !isGateway && !strings.EqualFold(scheme, "TargetToken") {
		token = ""
	}
	caller, err := x.Intake.Admit(x.request, device, token)
	switch {
	case err != nil:
		return err
	case isGateway != (caller.Via == devices.ViaFleetToken):
		return fmt.Errorf("%w: the scheme of Authorization is for another kind of token", devices.ErrUnauthenticated)
	case isGateway && !x.AllowGateway:
		return fmt.Errorf("%w: fleet_token_mode is enroll, and a DDI client cannot receive a token of its own", devices.ErrForbidden)
	}
	caller.Wire = devices.WireHawkbit
	x.caller = caller
	return nil
}

// handleReport passes one report of the device to the Handler, and returns the reply.
func (x *exchange) handleReport(report devices.Report) (devices.Reply, error) {
	if err := x.Intake.Enter(); err != nil {
		return devices.Reply{}, err
	}
	defer x.Intake.Leave()
	reply, err := x.Intake.Handler.HandleReport(x.request.Context(), x.caller, report)
	if err == nil && len(report.Running) == 0 {
		x.reason = reply.Reason
	}
	return reply, err
}

func (x *exchange) readAction() (Action, error) {
	found, err := x.Ledger.Action(x.request.Context(), x.caller.Device)
	return found, asUnavailable(err)
}

// updateAction updates the newest action of the device from the grant that the device holds (Ledger.UpdateAction). If there was an overrun,
// it calls OnOverrun.
func (x *exchange) updateAction(task, token int64) (Action, error) {
	updated, hasOverrun, err := x.Ledger.UpdateAction(x.request.Context(), x.caller.Device, task, token)
	if hasOverrun {
		x.Intake.Logger.WarnContext(x.request.Context(), "overrun: the lease of a device that speaks DDI ended before the device was heard again; it may have gone on without a slot", "device", x.caller.Device)
		x.OnOverrun(x.caller.Device, updated.ID)
	}
	return updated, asUnavailable(err)
}

// renewGrant renews the grant of an action. stopReason is empty if the grant is in force and its task may continue. Otherwise it is the reason
// why the task must stop, such as devices.CancelCancelled.
func (x *exchange) renewGrant(action Action, progress float64) (reply devices.Reply, stopReason string, err error) {
	reply, err = x.handleReport(devices.Report{Running: []devices.Running{{Task: action.Task, Token: action.Token, Progress: progress}}})
	switch {
	case err != nil:
		return reply, "", err
	case len(reply.Renewed) > 0:
		return reply, "", nil
	case len(reply.Cancel) > 0:
		return reply, reply.Cancel[0].Why, nil
	}
	return reply, "", devices.ErrUnavailable
}

// isGrantLost reports whether stopReason, a result of renewGrant, means that the grant is no longer in force.
func isGrantLost(stopReason string) bool {
	return stopReason == devices.CancelExpired || stopReason == devices.CancelStale
}

// asUnavailable wraps an error of the ledger in devices.ErrUnavailable, which refuses the request, so that the client sends it again.
func asUnavailable(err error) error {
	if err == nil || errors.Is(err, devices.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
}

func notFoundAnswer() answer { return answer{status: http.StatusNotFound} }

// goneAnswer logs feedback for an action that is no longer active, and returns the answer to it.
func (x *exchange) goneAnswer(newestAction int64, why string) answer {
	x.Intake.Logger.InfoContext(x.request.Context(), "feedback for an action that is not active", "device", x.caller.Device, "action", x.action, "newest", newestAction, "why", why)
	return answer{status: http.StatusGone}
}

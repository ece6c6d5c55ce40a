package hawkbit

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/devices"
)

// feedbackBody is what a device reports about an action. Other members are ignored.
type feedbackBody struct {
	Status struct {
		Execution string `json:"execution"`
		Result    struct {
			Finished string `json:"finished"`
			Progress struct {
				Count float64 `json:"cnt"`
				Of    float64 `json:"of"`
			} `json:"progress"`
		} `json:"result"`
		Details []string `json:"details"`
	} `json:"status"`
}

// progress returns the progress of the action, 0 to 1. If the progress is unknown, it returns 0.
func (f feedbackBody) progress() float64 {
	p := f.Status.Result.Progress
	if p.Of > 0 && p.Count > 0 && p.Count <= p.Of {
		return p.Count / p.Of
	}
	return 0
}

// skipped is the detail of a feedback of swupdate that reports success although swupdate did not install the deployment. swupdate sends it
// if the action is cancelled between its two requests for the deployment.
const skipped = "Skipped Update."

// postFeedback handles feedback to the action in the path. Feedback that ends the action becomes a result of the task. Any other feedback
// (also rejected) renews the grant. Feedback to an action that is not the newest changes nothing.
func (x *exchange) postFeedback() (answer, error) {
	got, newest, err := x.readFeedback()
	if err != nil {
		return answer{}, err
	}
	execution, finished := got.Status.Execution, got.Status.Result.Finished
	switch {
	case newest.ID != x.action || x.action == 0:
		return x.goneAnswer(newest.ID, "another action"), nil
	case execution == "closed" && (finished == "failure" || slices.Contains(got.Status.Details, skipped)):
		return x.reportEnd(newest, devices.StatusFailed, "the device reported a failure", got)
	case execution == "closed":
		return x.reportEnd(newest, devices.StatusSucceeded, "", got)
	case execution == "canceled":
		return x.reportEnd(newest, devices.StatusFailed, "canceled by the device", got)
	case !newest.IsOpen:
		return x.goneAnswer(newest.ID, "the action has ended"), nil
	}
	_, stop, err := x.renewGrant(newest, got.progress())
	if err == nil && isGrantLost(stop) {
		_, err = x.updateAction(0, 0)
		return x.goneAnswer(newest.ID, stop), err
	}
	return answer{status: http.StatusOK}, err
}

// reportEnd reports the end of an action as the result of its task, with this status. Only the first report of the end is answered with
// 200. After the end of the grant, the result is recorded as late. If the device sent no details, defaultError is the error of the task.
func (x *exchange) reportEnd(action Action, status devices.Status, defaultError string, got feedbackBody) (answer, error) {
	result, err := got.toResult(action, status, defaultError)
	if err != nil {
		return answer{}, err
	}
	reply, err := x.handleReport(devices.Report{Results: []devices.Result{result}})
	if err != nil {
		return answer{}, err
	}
	outcome := reply.Acks[0].Outcome
	if outcome == devices.OutcomeRecorded {
		err = x.Ledger.EndAction(x.request.Context(), x.caller.Device, action.ID, status == devices.StatusSucceeded)
		return answer{status: http.StatusOK}, asUnavailable(err)
	}
	_, err = x.updateAction(0, 0)
	return x.goneAnswer(action.ID, string(outcome)), err
}

// toResult returns the result of the task of action. The details become the output and, unless status is a success, the error.
func (f feedbackBody) toResult(action Action, status devices.Status, defaultError string) (devices.Result, error) {
	details := f.Status.Details
	var output json.RawMessage
	if len(details) > 0 {
		var err error
		if output, err = encodeJSON(map[string][]string{"details": details}); err != nil {
			return devices.Result{}, err
		}
	}
	errorText := ""
	if status != devices.StatusSucceeded {
		errorText = cmp.Or(strings.Join(details, "; "), defaultError)
	}
	return devices.NewResult(action.Task, action.Token, status, output, errorText), nil
}

// readFeedback returns the feedback in the body of the request, and the newest action of the device.
func (x *exchange) readFeedback() (got feedbackBody, newest Action, err error) {
	if err = x.readBody(&got); err == nil {
		newest, err = x.readAction()
	}
	return got, newest, err
}

func (x *exchange) readBody(target any) error {
	body, err := x.Intake.ReadBody(x.response, x.request, x.caller)
	if err != nil {
		return err
	}
	text, err := devices.CleanBody(body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, target); err != nil {
		return &devices.Error{Reason: devices.ReasonInvalid, Code: devices.CodeInvalidJSON, Detail: "body: " + err.Error()}
	}
	return nil
}

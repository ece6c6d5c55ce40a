package hawkbit

import (
	"net/http"

	"github.com/fleetslots/dispatcher/devices"
)

// getDeployment answers the request for the deployment of an action. It renews the grant, and answers 404 unless the grant is in force.
func (x *exchange) getDeployment() (answer, error) {
	newest, err := x.readAction()
	if err != nil || newest.ID != x.action || !newest.IsOpen || newest.Payload == nil {
		return notFoundAnswer(), err
	}
	_, stop, err := x.renewGrant(newest, 0)
	switch {
	case err != nil:
		return answer{}, err
	case isGrantLost(stop):
		_, err = x.updateAction(0, 0)
		return notFoundAnswer(), err
	case stop != "":
		return notFoundAnswer(), nil
	}
	return newDeploymentAnswer(newest)
}

// answerInstalledDeployment answers the request for the deployment that the device installed last.
func (x *exchange) answerInstalledDeployment() (answer, error) {
	newest, err := x.readAction()
	if err != nil || newest.ID != x.action || !newest.IsInstalled || newest.Payload == nil {
		return notFoundAnswer(), err
	}
	return newDeploymentAnswer(newest)
}

// newDeploymentAnswer returns the answer with the deployment of an action. If the payload of the action is not a deployment, the answer has a
// deployment without artifacts, whose metadata is the payload.
func newDeploymentAnswer(action Action) (answer, error) {
	payload, err := ParsePayload(action.Payload)
	if err != nil {
		payload = metadataPayload(action.Kind, action.Payload)
	}
	return answer{http.StatusOK, payload.toBody(action.ID)}, nil
}

// getCancelAction answers the request for the cancel of an action. The cancel has the number of the action that it stops.
func (x *exchange) getCancelAction() (answer, error) {
	newest, err := x.readAction()
	if err != nil || newest.ID != x.action || !newest.IsOpen {
		return notFoundAnswer(), err
	}
	_, stop, err := x.renewGrant(newest, 0)
	if err != nil || stop == "" || isGrantLost(stop) {
		return notFoundAnswer(), err
	}
	var body struct {
		ID     string `json:"id"`
		Cancel struct {
			StopID string `json:"stopId"`
		} `json:"cancelAction"`
	}
	body.ID = x.request.PathValue("action")
	body.Cancel.StopID = body.ID
	return answer{http.StatusOK, body}, nil
}

// postCancelFeedback handles the feedback of the device to a cancel. Feedback with the status closed ends the task. Feedback with the status
// rejected withdraws the cancel: the device continues, and reports the end of the action later.
func (x *exchange) postCancelFeedback() (answer, error) {
	got, newest, err := x.readFeedback()
	if err != nil {
		return answer{}, err
	}
	if newest.ID != x.action || !newest.IsOpen {
		return x.goneAnswer(newest.ID, "cancel"), nil
	}
	_, stop, err := x.renewGrant(newest, 0)
	switch {
	case err != nil:
		return answer{}, err
	case isGrantLost(stop):
		_, err = x.updateAction(0, 0)
		return x.goneAnswer(newest.ID, stop), err
	case stop == "":
		return answer{status: http.StatusMethodNotAllowed}, nil
	case got.Status.Execution == "closed":
		return x.reportEnd(newest, devices.StatusFailed, "stopped: "+stop, got)
	case got.Status.Execution == "rejected":
		err = x.Ledger.WithdrawCancel(x.request.Context(), newest.Task, newest.Token)
	}
	return answer{status: http.StatusOK}, asUnavailable(err)
}

package hawkbit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
)

// Device simulates a device that speaks hawkBit's DDI. It sends the requests of swupdate in the order of a recorded
// transcript. It is written from the contract of DDI alone. Run does one update after the other. Unlike swupdate, Device
// leaves the external system if the dispatcher does not answer for the time Patience, so that Device never overstays its
// lease. If a client without such a limit is cut off, the promises do not cover it.
type Device struct {
	URL          string // URL of the dispatcher, with the tenant
	ID           string
	Token        string // fleet token
	ExternalAddr string
	Place        int           // number of the device: external systems count its visits at this slot, which no other device uses
	Work         time.Duration // time in the external system for each update
	Patience     time.Duration // longest time in the external system without an answer of the dispatcher
	Client       *http.Client

	// Dies is called when the device has entered the external system. If Dies returns true, the device leaves, forgets its
	// update and sends nothing for the time Silence, as after a power failure. If Dies is nil, the device never dies.
	Dies    func() bool
	Silence time.Duration
}

// pause is the time after a failed request, and the longest pause between two polls that the device obeys while it works.
const pause = 500 * time.Millisecond

const (
	requestTimeout = 20 * time.Second
	maxAnswer      = 1 << 20 // bytes of an answer that the device reads
)

// pollAnswer is the part of the answer to a poll that the device reads.
type pollAnswer struct {
	Config struct {
		Polling struct {
			Sleep string `json:"sleep"`
		} `json:"polling"`
	} `json:"config"`
	Links struct {
		Deployment link `json:"deploymentBase"`
		Cancel     link `json:"cancelAction"`
		Config     link `json:"configData"`
	} `json:"_links"`
}

type link struct {
	Href string `json:"href"`
}

// pause returns the time until the next poll.
func (p pollAnswer) pause() time.Duration {
	at, err := time.Parse("15:04:05", p.Config.Polling.Sleep)
	if err != nil {
		return pause
	}
	return at.Sub(at.Truncate(24 * time.Hour))
}

// Run polls and does updates until ctx ends.
func (d *Device) Run(ctx context.Context) {
	for ctx.Err() == nil {
		polled, err := d.poll(ctx)
		switch {
		case err != nil:
			wait(ctx, pause)
		case polled.Links.Cancel.Href != "":
			_ = d.confirmCancel(ctx, polled.Links.Cancel.Href)
		case polled.Links.Deployment.Href != "":
			d.update(ctx, polled)
		default:
			wait(ctx, polled.pause())
		}
	}
}

// poll sends a poll, and the attributes of the device if the dispatcher asks for them.
func (d *Device) poll(ctx context.Context) (polled pollAnswer, err error) {
	if err = d.send(ctx, http.MethodGet, d.URL+"/controller/v1/"+d.ID, nil, &polled); err == nil && polled.Links.Config.Href != "" {
		err = d.send(ctx, http.MethodPut, polled.Links.Config.Href, map[string]any{"data": map[string]string{"simulated": "yes"}}, nil)
	}
	return polled, err
}

// update does one update: it reads the deployment twice (as swupdate does), uses the external system, and reports the end
// as a restarted device does. polled is the answer with the link to the deployment.
func (d *Device) update(ctx context.Context, polled pollAnswer) {
	_, err := d.readDeployment(ctx, polled.Links.Deployment.Href)
	if err == nil {
		polled, err = d.poll(ctx)
	}
	if err != nil || polled.Links.Deployment.Href == "" {
		return
	}
	sent := time.Now()
	number, err := d.readDeployment(ctx, polled.Links.Deployment.Href)
	if err != nil {
		return
	}
	if err := d.sendFeedback(ctx, number, "proceeding", "none", "Installing Update Chunk Artifacts."); err != nil {
		return
	}
	action, err := strconv.ParseInt(number, 10, 64)
	if err != nil || time.Since(sent) > d.Patience {
		return
	}
	leave, err := simulator.Enter(ctx, d.ExternalAddr, d.ID, 0, action, d.Place)
	if err != nil {
		return
	}
	dies := d.Dies != nil && d.Dies()
	isDone := !dies && d.work(ctx, number, sent)
	leave()
	switch {
	case dies:
		wait(ctx, d.Silence)
	case isDone:
		d.finish(ctx, number)
	}
}

// work stays in the external system for the time Work. During this time it polls. work returns false if the device must not report an end,
// because it was asked to stop, its update is no longer offered, or the dispatcher did not answer. lastSent is the time at which the last
// answered request was sent.
func (d *Device) work(ctx context.Context, actionID string, lastSent time.Time) bool {
	for end := time.Now().Add(d.Work); time.Now().Before(end); {
		left := d.Patience - time.Since(lastSent)
		if left <= 0 || ctx.Err() != nil {
			return false
		}
		limited, stop := context.WithTimeout(ctx, left)
		began := time.Now()
		polled, err := d.poll(limited)
		isActive := strings.HasSuffix(polled.Links.Deployment.Href, "/"+actionID)
		if err == nil && isActive {
			_, err = d.readDeployment(limited, polled.Links.Deployment.Href)
		}
		stop()
		switch {
		case err != nil:
			wait(ctx, min(pause, max(0, d.Patience-time.Since(lastSent))))
			continue
		case polled.Links.Cancel.Href != "":
			_ = d.confirmCancel(ctx, polled.Links.Cancel.Href)
			return false
		case !isActive:
			return false
		}
		lastSent = began
		wait(ctx, min(polled.pause(), pause, time.Until(end)))
	}
	return true
}

// finish reports that the update is installed. It then repeats the report of the end until the dispatcher has accepted it
// or no longer knows the action.
func (d *Device) finish(ctx context.Context, actionID string) {
	_ = d.sendFeedback(ctx, actionID, "proceeding", "none", "All Chunks Installed.")
	for ctx.Err() == nil {
		polled, err := d.poll(ctx)
		if err == nil && !strings.HasSuffix(polled.Links.Deployment.Href, "/"+actionID) {
			return
		}
		if err == nil {
			if _, err = d.readDeployment(ctx, polled.Links.Deployment.Href); err == nil {
				err = d.sendFeedback(ctx, actionID, "closed", "success", "Installation confirmed.")
			}
		}
		if err == nil {
			return
		}
		wait(ctx, pause)
	}
}

// readDeployment reads a deployment and returns the number of its action.
func (d *Device) readDeployment(ctx context.Context, href string) (number string, err error) {
	var read struct {
		ID         string `json:"id"`
		Deployment struct {
			Update string `json:"update"`
		} `json:"deployment"`
	}
	if err = d.send(ctx, http.MethodGet, href, nil, &read); err == nil && read.Deployment.Update != "forced" {
		err = fmt.Errorf("update is %q", read.Deployment.Update)
	}
	return read.ID, err
}

// confirmCancel confirms to the dispatcher that the device has stopped the action.
func (d *Device) confirmCancel(ctx context.Context, href string) error {
	return d.send(ctx, http.MethodPost, href+"/feedback", newFeedbackBody("closed", "success", "stopped"), nil)
}

func (d *Device) sendFeedback(ctx context.Context, actionID, execution, finished, detail string) error {
	return d.send(ctx, http.MethodPost, d.URL+"/controller/v1/"+d.ID+"/deploymentBase/"+actionID+"/feedback", newFeedbackBody(execution, finished, detail), nil)
}

func newFeedbackBody(execution, finished, detail string) (body map[string]any) {
	return map[string]any{"status": map[string]any{"execution": execution, "result": map[string]any{"finished": finished}, "details": []string{detail}}}
}

// send sends a request and decodes the answer into target, if target is not nil. Every status but 200 is an error.
func (d *Device) send(ctx context.Context, method, url string, body, target any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	ctx, stop := context.WithTimeout(ctx, requestTimeout)
	defer stop()
	request, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "GatewayToken "+d.Token)
	response, err := d.Client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s", method, url, response.Status)
	}
	if err == nil && target != nil {
		err = json.Unmarshal(answer, target)
	}
	return err
}

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

package hawkbit

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// link is a link to another resource of the device.
type link struct {
	Href string `json:"href"`
}

// poll answers the poll of a device, which is a report that asks for a task. Only a device with a slot gets a link to a deployment.
func (x *exchange) poll() (answer, error) {
	reply, err := x.handleReport(devices.Report{Accept: true})
	if err != nil {
		return answer{}, err
	}
	links := make(map[string]link)
	after := reply.ReportAfterMS
	if !reply.FromMark {
		after, err = x.addLinks(links, reply)
	}
	var body struct {
		Config struct {
			Polling struct {
				Sleep string `json:"sleep"`
			} `json:"polling"`
		} `json:"config"`
		Links map[string]link `json:"_links,omitempty"`
	}
	body.Config.Polling.Sleep, body.Links = formatPause(after), links
	return answer{http.StatusOK, body}, err
}

// addLinks adds to links the resources that the device is to request, according to reply. reply answers a poll for which the ledger was
// read. nextPollMS is the time until the next poll, in milliseconds.
func (x *exchange) addLinks(links map[string]link, reply devices.Reply) (nextPollMS int64, err error) {
	task, token, ok := grantInReply(reply)
	if !ok {
		return reply.ReportAfterMS, nil
	}
	newest, err := x.updateAction(task, token)
	if err != nil {
		return 0, err
	}
	if newest.AsksAttributes {
		links["configData"] = x.linkTo("configData")
	}
	if newest.IsInstalled && newest.Payload != nil {
		links["installedBase"] = x.linkTo(fmt.Sprintf("installedBase/%d", newest.ID))
	}
	if token == 0 || newest.Token != token {
		return reply.ReportAfterMS, nil
	}
	if len(reply.Cancel) > 0 {
		links["cancelAction"] = x.linkTo(fmt.Sprintf("cancelAction/%d", newest.ID))
		return reply.ReportAfterMS, nil
	}
	if newest.Payload == nil { // the device got the task over another wire, or its profile has no metadata_only any more: its lease is not renewed
		return reply.ReportAfterMS, nil
	}
	renewed, stop, err := x.renewGrant(newest, 0) // also checks that the grant is still in force
	switch {
	case err != nil:
		return 0, err
	case stop == "":
		links["deploymentBase"] = x.linkTo(fmt.Sprintf("deploymentBase/%d", newest.ID))
	case !isGrantLost(stop):
		links["cancelAction"] = x.linkTo(fmt.Sprintf("cancelAction/%d", newest.ID))
	}
	return renewed.ReportAfterMS, nil
}

// grantInReply returns the task and the token of the grant that the device holds according to reply, the reply to its poll. If it holds no
// grant, both are 0. ok is false if reply does not show whether the device holds a grant.
func grantInReply(reply devices.Reply) (task, token int64, ok bool) {
	switch {
	case reply.Task != nil:
		return reply.Task.ID, reply.Task.Token, true
	case len(reply.Cancel) > 0:
		return reply.Cancel[0].Task, reply.Cancel[0].Token, true
	}
	switch reply.Reason {
	case devices.ReasonBusy, devices.ReasonUnavailable, devices.ReasonBlocked:
		return 0, 0, false
	}
	return 0, 0, true
}

// maxSleep is the longest pause between two polls, because some clients read the text of the pause as a time of day.
const maxSleep = 24*time.Hour - time.Second

// formatPause returns the pause until the next poll as hours, minutes and seconds ("00:05:00"), as clients read it. The pause is at least a
// second, because 00:00:00 means the client's own default.
func formatPause(nextPollMS int64) string {
	pause := min(max((time.Duration(nextPollMS)*time.Millisecond).Round(time.Second), time.Second), maxSleep)
	seconds := int(pause / time.Second)
	return fmt.Sprintf("%02d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
}

// linkTo returns the link to a resource of the device. The link has no query, because clients append text to it.
func (x *exchange) linkTo(resource string) link {
	return link{x.baseURL() + "/" + x.Tenant + "/controller/v1/" + string(x.caller.Device) + "/" + resource}
}

// baseURL returns the start of all links: the configured address, or the address that the request names.
func (x *exchange) baseURL() string {
	if x.PublicURL != "" {
		return x.PublicURL
	}
	scheme, host := "http", x.request.Host
	if x.request.TLS != nil {
		scheme = "https"
	}
	if x.FromProxy != nil && x.FromProxy(x.request) {
		if forwarded := x.request.Header.Get("X-Forwarded-Proto"); forwarded == "http" || forwarded == "https" {
			scheme = forwarded
		}
		if forwarded := x.request.Header.Get("X-Forwarded-Host"); isHost(forwarded) {
			host = forwarded
		}
	}
	return scheme + "://" + host
}

// isHost reports whether text can be a host with or without a port.
func isHost(text string) bool {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-:[]"
	return text != "" && strings.Trim(text, allowed) == ""
}

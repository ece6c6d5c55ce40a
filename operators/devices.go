package operators

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"strconv"
	"time"
)

// NewDevice is a device to be registered.
type NewDevice struct {
	ID      string            `json:"id" doc:"1-128 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"`
	Tags    map[string]string `json:"tags,omitempty" nullable:"true" doc:"Set by operators; attributes are set by the device. At most 64 tags, 8 KiB in total; a name has 1-64 bytes and no colon"`
	Profile string            `json:"profile,omitempty" nullable:"true" maxLength:"64" doc:"Profile whose policies apply to its starts"`
	Token   string            `json:"token,omitempty" pattern:"^[0-9a-f]{32}$" doc:"The device's token, for firmware that can hold no more than 32 characters: 32 random hexadecimal digits. Absent: a longer one is made"`
}

// Device is a registered device.
type Device struct {
	ID           string            `json:"id"`
	Blocked      bool              `json:"blocked"`
	OwnToken     bool              `json:"own_token" doc:"true: the device has used its own token, so fleet tokens no longer act for it"`
	Tags         map[string]string `json:"tags"`
	Profile      string            `json:"profile" doc:"Empty: no profile"`
	Attributes   json.RawMessage   `json:"attributes"`
	Created      Time              `json:"created_at"`
	RegisteredBy string            `json:"registered_by" doc:"Who registered the device: an operator token, a fleet token (fleet:1a2b3c4d), or a session at an MQTT broker (session)"`
	LastSeen     *Time             `json:"last_seen" nullable:"true" doc:"Accurate to one minute"`
	QuietUntil   *Time             `json:"quiet_until" nullable:"true" doc:"The time from which the silence of the device counts: later than last_seen if the device was asked to report again after more than one report period"`
	Wire         string            `json:"wire" doc:"How the device reported last: http, mqtt or hawkbit (hawkBit's DDI); empty: it never reported. Accurate to one minute"`
	NoisyAt      *Time             `json:"noisy_at" nullable:"true" doc:"When the device was last recorded as reporting far too often; null: never. While the excess lasts, it is updated every minute"`
	BlockedBy    string            `json:"blocked_by" doc:"Operator who blocked the device; empty: it is not blocked, or waits for an approval"`
	BlockedAt    *Time             `json:"blocked_at" nullable:"true"`
	BlockReason  string            `json:"block_reason"`
	Mark         *Mark             `json:"mark,omitempty" doc:"Only in the reply for a single device; absent without Redis"`
}

// Mark compares the mark of a device in Redis, which says that the device has work, with the ledger.
type Mark struct {
	Present bool `json:"present" doc:"The device has a mark of work in Redis"`
	Trusted bool `json:"believed" doc:"true: marks are trusted, so a device without a mark is answered that there is nothing to do"`
	HasWork bool `json:"work" doc:"The ledger has an open task of the device"`
}

// DescribeTrouble describes for people how the mark of a device in Redis disagrees with the ledger. If there is no trouble, or m is nil, it
// returns an empty string.
func (m *Mark) DescribeTrouble() string {
	switch {
	case m == nil:
	case !m.Present && !m.Trusted:
		return "marks are not trusted now: each report of the device reads the ledger"
	case m.HasWork && !m.Present:
		return "the device has an open task and no mark: its reports are answered that there is nothing to do; if this lasts longer than 5 s, the mark was removed by hand"
	case m.Present && !m.HasWork:
		return "the device has a mark and no open task: its next report without results or running tasks deletes the mark"
	}
	return ""
}

// DeviceWhy lists the reasons why a device gets no task.
type DeviceWhy struct {
	Task    *int64   `json:"task" nullable:"true" doc:"The task that the device runs, or that it would be given first; null: no task waits for the device"`
	Reasons []Reason `json:"reasons" doc:"The reasons why this task does not run; empty without a task"`
	Mark    *Mark    `json:"mark,omitempty" doc:"The mark of the device; absent without a task or without Redis"`
}

// DeviceCreated is a new device with its token.
type DeviceCreated struct {
	Device

	Token string `json:"token" doc:"Shown only once; empty when a request with an Idempotency-Key is sent again"`
}

// DeviceList is a page of devices.
type DeviceList struct {
	Devices       []Device `json:"devices"`
	NextPageToken string   `json:"next_page_token,omitempty"`
}

// DevicePatch changes the tags and the profile of a device.
type DevicePatch struct {
	Tags    Change[map[string]*string] `json:"tags,omitzero" nullable:"true" doc:"Merged with the present tags: null for a tag removes it; null for the field removes all tags"`
	Profile Change[string]             `json:"profile,omitzero" nullable:"true" maxLength:"64" doc:"null: no profile"`
}

// Retag is a change of the tags of many devices. It leaves all tags that it does not name unchanged.
type Retag struct {
	Set   map[string]string `json:"set,omitempty" doc:"Tags to set, with their values"`
	Unset []string          `json:"unset,omitempty" nullable:"false" maxItems:"64" doc:"Names of tags to remove"`
}

// DevicesChanged has the number of devices that one request changed.
type DevicesChanged struct {
	Devices       int    `json:"devices" doc:"Number of devices that were changed, or would be; other devices needed no change"`
	Kept          int    `json:"kept,omitempty" doc:"Of a deletion: number of devices that have open tasks, which were not deleted"`
	NextPageToken string `json:"next_page_token,omitempty" doc:"Present if there are more devices: repeat the request with it"`
}

// Deletion has the options of a deletion of many devices.
type Deletion struct {
	Cancel bool `query:"cancel" doc:"true: also deletes devices with open tasks: waiting tasks are cancelled, the device of a dispatched task is asked to stop"`
	Refuse bool `query:"refuse" doc:"true: only an operator can register the ids again; reports with a fleet token get 403"`
}

// Rotation is the request for a new token of a device.
type Rotation struct {
	OverlapMS *int64 `json:"overlap_ms,omitempty" nullable:"true" minimum:"0" maximum:"2592000000" doc:"How long older tokens stay valid; 0: they end at once; default 24 h, at most 30 days"`
	Token     string `json:"token,omitempty" pattern:"^[0-9a-f]{32}$" doc:"The new token, for firmware that can hold no more than 32 characters: 32 random hexadecimal digits. Absent: a longer one is made"`
}

// TokenMade is the new token of a device.
type TokenMade struct {
	ID         string `json:"id"`
	Token      string `json:"token" doc:"Shown only once"`
	OlderUntil Time   `json:"older_until" doc:"When older tokens of the device end"`
}

// DeviceDeleted is the response after a device was deleted.
type DeviceDeleted struct {
	ID        string `json:"id"`
	Cancelled int    `json:"cancelled" doc:"Number of waiting tasks that were cancelled"`
	Stopping  int    `json:"stopping" doc:"Number of dispatched tasks: each keeps its slot until its lease ends"`
}

// DeviceFilter selects the devices that match all fields that are set.
type DeviceFilter struct {
	Tags         []string `query:"tag,explode" maxItems:"64" doc:"A tag as name:value; if repeated, the device must have all of them"`
	Profile      string   `query:"profile" maxLength:"64" doc:"Only devices with this profile" flag:"only devices with this profile"`
	Blocked      string   `query:"blocked" enum:"true,false" flag:"true: only blocked devices; false: only devices that are not blocked"`
	Noisy        string   `query:"noisy" enum:"true,false" doc:"true: only devices with noisy_at within the last 5 minutes; false: only the others" flag:"true: only devices that reported far too often within the last 5 minutes; false: only other devices"`
	Prefix       string   `query:"prefix" maxLength:"128" pattern:"^[A-Za-z0-9._:-]*$" doc:"Prefix of the id" flag:"only devices whose id begins with this text"`
	IDPart       string   `query:"part" maxLength:"128" pattern:"^[A-Za-z0-9._:-]*$" doc:"Part of the id; case is ignored; not with silent_for_ms" flag:"only devices whose id contains this text, ignoring case; not with --silent-for"`
	SilentMS     int64    `query:"silent_for_ms" minimum:"1" maximum:"315360000000" doc:"Only devices that have been silent for this time (see quiet_until), or never reported"`
	RegisteredBy string   `query:"registered_by" maxLength:"200" doc:"Only devices that this operator token, fleet token (fleet:1a2b3c4d) or session registered" flag:"only devices that this operator token or fleet token (fleet:1a2b3c4d) registered; session: by a session at an MQTT broker"`

	CreatedSince time.Time `query:"created_since" doc:"Only devices that were registered at this time or later, such as 2026-11-21T14:00:00Z" flag:"only devices that were registered at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z"`

	Recent int `query:"recent" minimum:"1" maximum:"1000" doc:"Only this number of devices, last seen first; excludes filters and page_token" flag:"number of devices to show, latest report first, 1 to 1000; not with other filters"`
}

// IsEmpty reports whether the filter selects all devices.
func (f DeviceFilter) IsEmpty() bool { return len(queryParams(f)) == 0 }

// Devices has the calls about devices.
type Devices struct {
	client *Client

	List        List[DeviceFilter, Device]            `op:"GET /v1/devices" id:"listDevices" role:"viewer" doc:"List devices by id"`
	Get         Call[string, Device]                  `op:"GET /v1/devices/{id}" id:"getDevice" role:"viewer" doc:"Read a device"`
	Why         Call[string, DeviceWhy]               `op:"GET /v1/devices/{id}/why" id:"explainDevice" scope:"all" role:"viewer" doc:"Explain why a device gets no task, and how to change that"`
	Create      Call[NewDevice, DeviceCreated]        `op:"POST /v1/devices" id:"createDevice" role:"operator" status:"201" once:"true" doc:"Create a device and its token, or many"`
	Change      CallWith[string, DevicePatch, Device] `op:"PATCH /v1/devices/{id}" id:"patchDevice" role:"operator" doc:"Change the tags and the profile of a device; absent ones stay, null removes one"`
	RotateToken CallWith[string, Rotation, TokenMade] `op:"POST /v1/devices/{id}/token" id:"rotateToken" role:"operator" doc:"Create a new token of a device"`
	Block       CallWith[string, PauseReason, Device] `op:"POST /v1/devices/{id}/block" id:"blockDevice" role:"operator" doc:"Block a device: it gets no grants, and it is asked to stop its task"`
	Unblock     Call[string, Device]                  `op:"POST /v1/devices/{id}/unblock" id:"unblockDevice" role:"operator" doc:"Unblock a device"`

	History ListOf[string, All, Holding] `op:"GET /v1/devices/{id}/history" id:"getDeviceHistory" scope:"all" role:"viewer" doc:"List the attempts of a device, the latest ends first"`
	_       struct{}                     `op:"DELETE /v1/devices/{id}" id:"deleteDevice" role:"operator" doc:"Delete a device and its tokens"`
	_       struct{}                     `op:"POST /v1/devices/retag" id:"retagDevices" role:"operator" doc:"Set or remove tags of all devices that match, one page per request"`
	_       struct{}                     `op:"POST /v1/devices/delete" id:"deleteDevices" role:"operator" doc:"Delete all devices that match, one page per request"`
	_       struct{}                     `op:"POST /v1/devices/block" id:"blockDevices" role:"operator" doc:"Block all devices that match, one page per request"`
	_       struct{}                     `op:"POST /v1/devices/unblock" id:"unblockDevices" role:"operator" doc:"Unblock all devices that match, one page per request"`
}

// Import registers all devices of a file, or none of them, and writes their tokens to tokensOut. mediaType is the format of the file
// (TypeCSV or TypeNDJSON), and tokensMediaType is the format of the tokens. onExisting sets what happens to devices that exist already:
// refuse (the default), skip, update or rotate. The request is sent only once, because the tokens are not shown again.
func (c Devices) Import(ctx context.Context, file io.Reader, mediaType, onExisting, tokensMediaType string, tokensOut io.Writer) error {
	request := c.client.prepareRequest(ctx, "createDevice", Query("existing", onExisting))
	request.ContentType, request.Accept, request.NoRetry = mediaType, tokensMediaType, true
	request.OpenBody = func() (io.ReadCloser, error) { return io.NopCloser(file), nil }
	return c.client.Copy(ctx, request, tokensOut)
}

// Retag changes the tags of all devices that match filter, one page in each request. It returns the number of changed devices, even if it
// returns an error. If dryRun is true, it only counts them.
func (c Devices) Retag(ctx context.Context, filter DeviceFilter, change Retag, dryRun bool) (changed int, err error) {
	done, err := c.changeMatching(ctx, "retagDevices", filter, nil, change, dryRun)
	return done.Devices, err
}

// DeleteMatching deletes all devices that match filter, and their tokens, one page in each request. It returns the number of deleted
// devices and of devices that it kept, even if it returns an error. If dryRun is true, it only counts them.
func (c Devices) DeleteMatching(ctx context.Context, filter DeviceFilter, options Deletion, dryRun bool) (DevicesChanged, error) {
	return c.changeMatching(ctx, "deleteDevices", filter, queryParams(options), nil, dryRun)
}

// SetBlockedMatching blocks all devices that match filter, or unblocks them if blocked is false, one page in each request. reason, which may
// be empty, is shown to people. The result counts the changed devices, even if there is an error. If dryRun is true, it only counts them.
func (c Devices) SetBlockedMatching(ctx context.Context, filter DeviceFilter, blocked bool, reason string, dryRun bool) (DevicesChanged, error) {
	operationID := "unblockDevices"
	if blocked {
		operationID = "blockDevices"
	}
	return c.changeMatching(ctx, operationID, filter, nil, PauseReason{reason}, dryRun)
}

// changeMatching sends the requests of operationID, an operation on all devices that match filter, and returns the sum of their results.
// extraQuery are more query parameters. body may be nil.
func (c Devices) changeMatching(ctx context.Context, operationID string, filter DeviceFilter, extraQuery url.Values, body any, dryRun bool) (sum DevicesChanged, err error) {
	request := c.client.prepareRequest(ctx, operationID, body, queryParams(filter))
	maps.Copy(request.Query, extraQuery)
	request.Query.Set("page_size", "1000")
	if dryRun {
		request.Query.Set("dry_run", "true")
	}
	for {
		done, err := callJSON[DevicesChanged](ctx, c.client, request)
		sum.Devices, sum.Kept = sum.Devices+done.Devices, sum.Kept+done.Kept
		if err != nil || done.NextPageToken == "" {
			return sum, err
		}
		request.Query.Set("page_token", done.NextPageToken)
	}
}

// Delete deletes a device and its tokens. If cancelOpenTasks is true, the server also cancels the open tasks of the device. If it is
// false, a device with open tasks is not deleted.
func (c Devices) Delete(ctx context.Context, id string, cancelOpenTasks bool) (DeviceDeleted, error) {
	return callJSON[DeviceDeleted](ctx, c.client, c.client.prepareRequest(ctx, "deleteDevice", id, Query("cancel", strconv.FormatBool(cancelOpenTasks))))
}

package api

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type deviceStore interface {
	Device(ctx context.Context, id string) (store.Device, error)
	Devices(ctx context.Context, filter store.DeviceFilter) ([]store.Device, error)
	SearchDevices(ctx context.Context, filter store.DeviceFilter, maxSearched int) (store.DeviceSearchPage, error)
	SilentDevices(ctx context.Context, filter store.DeviceFilter, silentFor time.Duration, maxSearched int) (store.DeviceSearchPage, error)
	DevicesWithIDPart(ctx context.Context, filter store.DeviceFilter, idPart string, maxSearched int) (store.DeviceSearchPage, error)
	DevicesByID(ctx context.Context, ids []string) ([]store.Device, error)
	ChangeDevice(ctx context.Context, actor, id string, change func(*store.DeviceSpec) error) (store.Device, error)
	ChangeDevices(ctx context.Context, actor string, ids []string, dryRun bool, change store.DeviceChange) (int, error)
	Holdings(ctx context.Context, filter store.HoldingFilter) ([]store.Holding, store.SearchBound, error)
}

// DevicePath is the path parameter {id}: the id of a device.
type DevicePath struct {
	ID devices.ID `path:"id"`
}

func (d DevicePath) checkName() error {
	_, err := devices.ParseID(string(d.ID))
	return err
}

type deviceOperations struct {
	ledger         deviceStore
	recentAttempts recentAttemptsReader
	credentials    *credentials.Registry
	recentDevices  RecentDevices
	readMark       func(ctx context.Context, device devices.ID) *decision.Mark // reads the mark of a device in Redis
	explain        func(ctx context.Context, device devices.ID) (task int64, _ decision.Explanation, _ error)
	bodyLimits     BodyLimits
	imports        *fair.Shares // limits concurrent imports
}

func (d *deviceOperations) register(r *routes) {
	create := r.describeOperation("createDevice")
	create.Middlewares = r.newMiddlewares(d.handleImport)
	describeImport(&create)
	register(r, create, d.create)
	registerList[operators.DeviceList](r, r.describeOperation("listDevices"), d.list)
	register(r, r.describeOperation("getDevice"), d.get)
	register(r, r.describeOperation("explainDevice"), d.explainDevice)
	registerList[operators.HoldingList](r, r.describeOperation("getDeviceHistory"), d.listAttempts)
	register(r, r.describeOperation("patchDevice"), d.patch)
	register(r, r.describeOperation("retagDevices"), d.retag)
	register(r, r.describeOperation("deleteDevices"), d.deleteMatching)
	register(r, r.describeOperation("blockDevices"), d.newBlockMatchingHandler(true))
	register(r, r.describeOperation("unblockDevices"), d.newBlockMatchingHandler(false))
	register(r, r.describeOperation("deleteDevice"), d.delete)
	register(r, r.describeOperation("rotateToken"), d.rotateToken)
	register(r, r.describeOperation("blockDevice"), d.newBlockHandler(true))
	register(r, r.describeOperation("unblockDevice"), d.newBlockHandler(false))
}

func (d *deviceOperations) create(ctx context.Context, in *struct{ Body operators.NewDevice }) (operators.DeviceCreated, error) {
	id, err := devices.ParseID(in.Body.ID)
	if err == nil {
		err = checkTags(in.Body.Tags)
	}
	if err != nil {
		return operators.DeviceCreated{}, err
	}
	made, token, err := d.credentials.CreateDevice(ctx, operatorName(ctx), id, store.DeviceSpec{Tags: in.Body.Tags, Profile: in.Body.Profile}, in.Body.Token)
	return operators.DeviceCreated{Device: toAPIDevice(made), Token: secretUnlessReplay(ctx, token)}, err
}

func (d *deviceOperations) list(ctx context.Context, in *deviceQuery) (page listPage[operators.Device], err error) {
	if in.Recent > 0 {
		return d.listRecent(ctx, in)
	}
	filter, err := in.filter()
	if err != nil {
		return page, err
	}
	if in.IDPart != "" && in.SilentMS != 0 {
		return page, invalidProblem("part: not together with silent_for_ms")
	}
	searchedTo := ""
	found, more, err := readInParts(in.Size, func(last *store.Device, limit int) ([]store.Device, error) {
		if filter.Limit = limit; last != nil {
			filter.After = last.ID
		}
		// Devices ignores filters without an index, so this condition must name each of them.
		if in.SilentMS == 0 && in.IDPart == "" && in.RegisteredBy == "" && in.CreatedSince.IsZero() {
			return d.ledger.Devices(ctx, filter)
		}
		part, err := d.searchDevices(ctx, in, filter)
		searchedTo = part.ContinueAfter
		return part.Devices, err
	}, approximateDeviceBytes)
	page = newPage(found, more, toAPIDevice, func(d store.Device) string { return d.ID })
	if !more && searchedTo != "" {
		page.next = pageToken(searchedTo)
	}
	return page, err
}

// searchDevices lists devices by filters for which the ledger has no index. filter is request in the form of the ledger. One call
// examines a limited number of devices.
func (d *deviceOperations) searchDevices(ctx context.Context, request *deviceQuery, filter store.DeviceFilter) (store.DeviceSearchPage, error) {
	switch {
	case request.IDPart != "":
		return d.ledger.DevicesWithIDPart(ctx, filter, request.IDPart, store.DeviceSearchLimit)
	case request.SilentMS != 0:
		return d.ledger.SilentDevices(ctx, filter, milliseconds(request.SilentMS), store.DeviceSearchLimit)
	}
	return d.ledger.SearchDevices(ctx, filter, store.DeviceSearchLimit)
}

func approximateDeviceBytes(device store.Device) int {
	return len(device.Attributes) + 128*len(device.Tags)
}

func (d *deviceOperations) get(ctx context.Context, in *DevicePath) (operators.Device, error) {
	found, err := d.ledger.Device(ctx, string(in.ID))
	shown := toAPIDevice(found)
	if err == nil {
		shown.Mark = (*operators.Mark)(d.readMark(ctx, in.ID))
	}
	return shown, err
}

func (d *deviceOperations) explainDevice(ctx context.Context, in *DevicePath) (operators.DeviceWhy, error) {
	task, e, err := d.explain(ctx, in.ID)
	if err != nil {
		return operators.DeviceWhy{}, err
	}
	reasons, err := toAPIReasons(ctx, d.recentAttempts, e.Causes)
	shown := operators.DeviceWhy{Reasons: reasons, Mark: (*operators.Mark)(e.Mark)}
	if task != 0 {
		shown.Task = &task
	}
	return shown, err
}

func (d *deviceOperations) listAttempts(ctx context.Context, in *struct {
	DevicePath
	NumberPage
},
) (page listPage[operators.Holding], err error) {
	if _, err := d.ledger.Device(ctx, string(in.ID)); err != nil {
		return page, err
	}
	found, bound, err := d.ledger.Holdings(ctx, store.HoldingFilter{Device: string(in.ID), Newest: true, Before: in.afterNumber, Limit: in.Size})
	return newPage(found, in.isFull(len(found)), toAPIHolding, func(h store.Holding) string { return formatDecimal(h.ID) }).continueAfter(bound), err
}

func toAPIDevice(device store.Device) operators.Device {
	tags := device.Tags
	if tags == nil {
		tags = map[string]string{}
	}
	attributes := device.Attributes
	if len(attributes) == 0 {
		attributes = json.RawMessage("{}")
	}
	return operators.Device{
		ID: device.ID, Blocked: device.Blocked, OwnToken: device.OwnToken, Tags: tags, Profile: device.Profile, Attributes: attributes,
		Created: apiTime(device.CreatedAt), RegisteredBy: device.RegisteredBy, LastSeen: apiTimePointer(device.LastSeen), QuietUntil: apiTimePointer(device.QuietUntil),
		Wire: device.Wire, NoisyAt: apiTimePointer(device.NoisyAt), BlockedBy: device.BlockedBy, BlockedAt: apiTimePointer(device.BlockedAt), BlockReason: device.BlockReason,
	}
}

// Limits of a device's tags.
const (
	maxTags     = 64
	maxTagsSize = 8 << 10 // size in bytes, as JSON
	maxTagName  = 64      // length in bytes
)

type devicePatch struct {
	operators.DevicePatch

	Attributes json.RawMessage `json:"attributes,omitempty" hidden:"true"` // accepted only so that the error is better than "unknown field"
}

func (d *deviceOperations) patch(ctx context.Context, in *struct {
	DevicePath
	Body devicePatch
},
) (operators.Device, error) {
	if nilIfNull(in.Body.Attributes) != nil {
		return operators.Device{}, invalidProblem("attributes: only the device sets them; set tags instead")
	}
	changed, err := d.ledger.ChangeDevice(ctx, operatorName(ctx), string(in.ID), func(spec *store.DeviceSpec) error {
		applyChange(in.Body.Profile, &spec.Profile, "")
		return in.Body.mergeTags(spec.Tags)
	})
	return toAPIDevice(changed), err
}

// mergeTags changes tags, the tags of a device, as the patch says. It returns an error if the result is invalid.
func (p devicePatch) mergeTags(tags map[string]string) error {
	if !p.Tags.Present {
		return nil
	}
	if p.Tags.Value == nil {
		clear(tags)
		return nil
	}
	for name, value := range *p.Tags.Value {
		if value == nil {
			delete(tags, name)
			continue
		}
		tags[name] = *value
	}
	return checkTags(tags)
}

func checkTags(tags map[string]string) error {
	for name := range tags {
		if name == "" || len(name) > maxTagName || strings.Contains(name, ":") {
			return invalidProblem("tags: %q: a name must have 1-%d bytes and no colon", name, maxTagName)
		}
	}
	if len(tags) > maxTags {
		return invalidProblem("tags: %d tags, at most %d", len(tags), maxTags)
	}
	if text, _ := json.Marshal(tags); len(text) > maxTagsSize { // strings always marshal
		return invalidProblem("tags: %d bytes as JSON, at most %d", len(text), maxTagsSize)
	}
	return nil
}

// defaultOverlap is the time for which older tokens stay valid after a rotation: the device has a day to receive the
// new token.
const defaultOverlap = 24 * time.Hour

func (d *deviceOperations) rotateToken(ctx context.Context, in *struct {
	DevicePath
	Body *operators.Rotation
},
) (operators.TokenMade, error) {
	overlap, chosen := defaultOverlap, ""
	if in.Body != nil {
		chosen = in.Body.Token
	}
	if in.Body != nil && in.Body.OverlapMS != nil {
		overlap = milliseconds(*in.Body.OverlapMS)
	}
	token, until, err := d.credentials.RotateToken(ctx, operatorName(ctx), in.ID, overlap, chosen)
	return operators.TokenMade{ID: string(in.ID), Token: token, OlderUntil: apiTime(until)}, err
}

// blockReason is the body of a request to block or unblock devices. The body may be null, because earlier releases did not read it.
type blockReason struct {
	_ struct{} `nullable:"true"`
	operators.PauseReason
}

func (b *blockReason) text() string {
	if b == nil {
		return ""
	}
	return b.Reason
}

type blockRequest struct {
	DevicePath
	Body *blockReason
}

// newBlockHandler returns a handler that blocks a device if mustBlock is true, and otherwise unblocks it.
func (d *deviceOperations) newBlockHandler(mustBlock bool) (handler func(context.Context, *blockRequest) (operators.Device, error)) {
	return func(ctx context.Context, in *blockRequest) (operators.Device, error) {
		if err := d.credentials.SetBlocked(ctx, operatorName(ctx), in.ID, mustBlock, in.Body.text()); err != nil {
			return operators.Device{}, err
		}
		return d.get(ctx, &in.DevicePath)
	}
}

func (d *deviceOperations) delete(ctx context.Context, in *struct {
	DevicePath
	Cancel bool `query:"cancel" doc:"true: deletes the device even if it has open tasks: waiting tasks are cancelled, the device of a dispatched task is asked to stop"`
},
) (operators.DeviceDeleted, error) {
	removed, err := d.credentials.DeleteDevice(ctx, operatorName(ctx), in.ID, in.Cancel)
	return operators.DeviceDeleted{ID: string(in.ID), Cancelled: removed.Cancelled, Stopping: removed.Stopping}, err
}

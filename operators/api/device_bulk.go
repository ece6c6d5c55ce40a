package api

import (
	"context"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// DeviceSelection is a request to change a page of the devices that match. A client continues with the page token, which is a position in
// the order of ids. Therefore no device is skipped if the change of a page removes devices from the selection.
type DeviceSelection struct {
	Page
	operators.DeviceFilter
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

// deviceFilters are the names of the filters of devices.
const deviceFilters = "tag, profile, blocked, noisy, prefix, part, silent_for_ms, registered_by, created_since"

// matching returns the ids of a page of the devices that match, and the page token of the next page. It refuses a request that selects all
// devices.
func (d *deviceOperations) matching(ctx context.Context, in *DeviceSelection) (ids []string, next string, err error) {
	switch {
	case in.Recent > 0:
		return nil, "", invalid("recent: not supported by this operation")
	case in.IsEmpty():
		return nil, "", invalid("%s: at least one is required", deviceFilters)
	}
	page, err := d.list(ctx, &deviceQuery{in.Page, in.DeviceFilter})
	for _, device := range page.entries {
		ids = append(ids, device.ID)
	}
	return ids, page.next, err
}

type deletion struct {
	DeviceSelection
	operators.Deletion
}

func (d *deviceOperations) deleteMatching(ctx context.Context, in *deletion) (operators.DevicesChanged, error) {
	ids, next, err := d.matching(ctx, &in.DeviceSelection)
	if err != nil {
		return operators.DevicesChanged{}, err
	}
	removed, err := d.credentials.DeleteDevices(ctx, actor(ctx), ids, store.DeviceDeletion{CancelOpenTasks: in.Cancel, Refuse: in.Refuse, DryRun: in.DryRun})
	return operators.DevicesChanged{Devices: removed.Deleted, Kept: removed.Kept, NextPageToken: next}, err
}

type bulkBlock struct {
	DeviceSelection
	Body *blockReason
}

// blockMatchingHandler returns a handler that blocks a page of the devices that match, or unblocks them if blocked is false.
func (d *deviceOperations) blockMatchingHandler(blocked bool) func(context.Context, *bulkBlock) (operators.DevicesChanged, error) {
	return func(ctx context.Context, in *bulkBlock) (operators.DevicesChanged, error) {
		ids, next, err := d.matching(ctx, &in.DeviceSelection)
		if err != nil {
			return operators.DevicesChanged{}, err
		}
		changed, err := d.credentials.SetAllBlocked(ctx, actor(ctx), ids, blocked, in.Body.text(), in.DryRun)
		return operators.DevicesChanged{Devices: changed, NextPageToken: next}, err
	}
}

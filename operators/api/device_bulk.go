package api

import (
	"context"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// DeviceSelection selects one page of the devices that match a filter, for a change. The page token of the next page is a device id.
// Therefore no device is skipped if a change removes the devices of a page from the selection.
type DeviceSelection struct {
	Page
	operators.DeviceFilter
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

// deviceFilters has the names of the filters of devices, except recent, for error messages.
const deviceFilters = "tag, profile, blocked, noisy, prefix, part, silent_for_ms, registered_by, created_since"

// selectDevices returns the ids of one page of the devices that match the filter of the request, and the page token of the next page. It
// refuses a request without a filter.
func (d *deviceOperations) selectDevices(ctx context.Context, in *DeviceSelection) (ids []string, nextToken string, err error) {
	switch {
	case in.Recent > 0:
		return nil, "", invalidProblem("recent: not supported by this operation")
	case in.IsEmpty():
		return nil, "", invalidProblem("%s: at least one is required", deviceFilters)
	}
	page, err := d.list(ctx, &deviceQuery{in.Page, in.DeviceFilter})
	for _, device := range page.entries {
		ids = append(ids, device.ID)
	}
	return ids, page.next, err
}

func (d *deviceOperations) deleteMatching(ctx context.Context, in *struct {
	DeviceSelection
	operators.Deletion
},
) (operators.DevicesChanged, error) {
	ids, next, err := d.selectDevices(ctx, &in.DeviceSelection)
	if err != nil {
		return operators.DevicesChanged{}, err
	}
	removed, err := d.credentials.DeleteDevices(ctx, operatorName(ctx), ids, store.DeviceDeletion{CancelOpenTasks: in.Cancel, Refuse: in.Refuse, DryRun: in.DryRun})
	return operators.DevicesChanged{Devices: removed.Deleted, Kept: removed.Kept, NextPageToken: next}, err
}

type bulkBlock struct {
	DeviceSelection
	Body *blockReason
}

// newBlockMatchingHandler returns a handler that blocks one page of the devices that match a filter if mustBlock is true, and otherwise
// unblocks them.
func (d *deviceOperations) newBlockMatchingHandler(mustBlock bool) (handler func(context.Context, *bulkBlock) (operators.DevicesChanged, error)) {
	return func(ctx context.Context, in *bulkBlock) (operators.DevicesChanged, error) {
		ids, next, err := d.selectDevices(ctx, &in.DeviceSelection)
		if err != nil {
			return operators.DevicesChanged{}, err
		}
		changed, err := d.credentials.SetAllBlocked(ctx, operatorName(ctx), ids, mustBlock, in.Body.text(), in.DryRun)
		return operators.DevicesChanged{Devices: changed, NextPageToken: next}, err
	}
}

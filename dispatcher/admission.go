package dispatcher

import (
	"context"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// admission describes the admitted sender of a report: a caller that may act for the device.
type admission struct {
	view       store.DeviceView // as read from the ledger; if isKnown is true, only the time in it is set
	isKnown    bool             // the caller was admitted before, so the ledger was not read
	reach      store.Reach      // how the device could be notified before this report
	credential string           // the new token of the device; empty if it gets none
}

// admit checks that the caller may act for its device. It does not read the ledger if three things hold: the report came over HTTP and only
// has results, the caller was admitted before, and this replica follows the news. So for some seconds it may admit a device that another
// replica has blocked or deleted. This changes nothing for the results: the results of a blocked device are recorded over HTTP in any case,
// and a deleted device has no grant.
func (d *Dispatcher) admit(ctx context.Context, caller devices.Caller, report devices.Report) (admission, error) {
	if d.Marks != nil && hasOnlyResults(report) && caller.Via != devices.ViaSession {
		now, followsNews := d.Marks.LedgerTime()
		if reach, isKnown := d.Devices.LastAdmission(caller); isKnown && followsNews {
			return admission{view: store.DeviceView{Now: now}, isKnown: true, reach: reach}, nil
		}
	}
	view, err := d.readView(ctx, caller.Device, fullView(!hasContents(report)))
	if err != nil {
		return admission{}, err
	}
	admitted, err := d.Devices.Admit(ctx, caller, view)
	if err != nil {
		return admission{}, err //nolint:wrapcheck // the registry's own
	}
	view.Device = admitted.Device
	return admission{view: view, reach: view.Device.Reach, credential: admitted.Credential}, nil
}

// recordAdmission records the admission of the caller, so that later reports of the caller need no read of the ledger for their admission.
// It records nothing if the device is blocked, or if the reply carries a new token.
func (r *reporter) recordAdmission(admitted admission) {
	switch {
	case r.d.Marks == nil || r.caller.Via == devices.ViaLease || admitted.credential != "":
	case admitted.isKnown:
		r.d.Devices.RecordReach(r.caller, r.reach())
	case !admitted.view.Device.Blocked:
		r.d.Devices.RecordAdmission(r.caller, r.reach())
	}
}

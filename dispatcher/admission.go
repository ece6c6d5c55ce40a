package dispatcher

import (
	"context"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// admission is the result of admitting the sender of a report.
type admission struct {
	view       store.DeviceView // as read from the ledger; if isKnown is true, only view.Now is set
	isKnown    bool             // the sender was admitted before, so the ledger was not read
	reach      store.Reach      // how the device could be notified before this report
	credential string           // the new token of the device; empty if it gets none
}

// admitCaller checks that the sender may act for its device. Usually it reads the device from the ledger. It skips this read if the report came
// over HTTP with results only, the sender was admitted before, and this replica reads the news in time. Without the read, it may admit a
// device that was blocked or deleted some seconds ago. That is harmless: over HTTP, results of a blocked device are recorded anyway, and a
// deleted device has no grant.
func (d *Dispatcher) admitCaller(ctx context.Context, caller devices.Caller, report devices.Report) (admission, error) {
	if d.Marks != nil && hasOnlyResults(report) && caller.Via != devices.ViaSession {
		now, followsNews := d.Marks.LedgerTime()
		if reach, isKnown := d.Devices.ReachAtAdmission(caller); isKnown && followsNews {
			return admission{view: store.DeviceView{Now: now}, isKnown: true, reach: reach}, nil
		}
	}
	view, err := d.readView(ctx, caller.Device, fullView(!hasMoreThanTaskRequest(report)))
	if err != nil {
		return admission{}, err
	}
	admitted, err := d.Devices.Admit(ctx, caller, view)
	if err != nil {
		return admission{}, err
	}
	view.Device = admitted.Device
	return admission{view: view, reach: view.Device.Reach, credential: admitted.Credential}, nil
}

// recordAdmission records that the sender was admitted. Later reports of the sender can then be admitted without a read of the ledger.
// recordAdmission records nothing if the device is blocked or gets a new token.
func (r *reporter) recordAdmission(admitted admission) {
	switch {
	case r.d.Marks == nil || r.caller.Via == devices.ViaLease || admitted.credential != "":
	case admitted.isKnown:
		r.d.Devices.RecordReach(r.caller, r.reach())
	case !admitted.view.Device.Blocked:
		r.d.Devices.RecordAdmission(r.caller, r.reach())
	}
}

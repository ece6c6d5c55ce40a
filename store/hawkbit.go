package store

import (
	"context"
	"encoding/json"
	"fmt"
)

// hawkbit holds the actions of devices which speak hawkBit's DDI.
type hawkbit struct{ *connection }

// hawkbitJump is the number that a restore adds to the numbers of actions, because the lost part of the ledger may have used the next
// numbers. Numbers fit into 32 bits, so there is room for about 2,000 restores.
const hawkbitJump = 1_000_000

// HawkbitState is the state of an action.
type HawkbitState string

// The states of an action.
const (
	HawkbitOpen      HawkbitState = "open"
	HawkbitInstalled HawkbitState = "installed" // the device reported a success
	HawkbitClosed    HawkbitState = "closed"    // the device reported another end
	HawkbitOverrun   HawkbitState = "overrun"   // the grant ended without a result, and the device reported again
)

// HawkbitAction is the newest action of a device: one grant, under a number that fits into 32 bits.
type HawkbitAction struct {
	ID             int64 // 0 means that the device had no action
	Task, Token    int64 // the grant of the action
	State          HawkbitState
	AsksAttributes bool
	Kind           string          // of the batch of the task
	Payload        json.RawMessage // nil if a device that speaks DDI cannot read the payload of the task
	Attributes     json.RawMessage // attributes of the device
}

// hawkbitScanDest returns pointers to the fields of action for hawkbitColumns.
func hawkbitScanDest(action *HawkbitAction) (scanDest []any) {
	return []any{&action.ID, &action.Task, &action.Token, &action.State, &action.AsksAttributes, &action.Kind, &action.Payload, &action.Attributes}
}

// hawkbitColumns are the columns of a HawkbitAction. a is its row (NULL if the device had no action), o the task, c the batch, d the device, w the
// profile of the device.
const hawkbitColumns = `a.action, a.task, a.token, coalesce(a.state, 'closed'), coalesce(a.asks, TRUE), c.kind,
	CASE WHEN ` + fitsDDI + ` THEN coalesce(CAST(coalesce(o.payload, c.payload) AS text), 'null') END, d.attributes`

// fitsDDI is the SQL condition that a device which speaks DDI can read the payload of task o in batch c. The payload is a deployment, or the
// profile of the device allows other payloads (w.metadata_only). A payload that is no deployment may have at most 256 bytes, because it is sent
// as a text inside a text, and the whole answer, which also has the kind of the batch, may have at most 1,100 bytes.
const fitsDDI = `CASE WHEN c.is_deployment AND o.payload IS NULL THEN TRUE
	WHEN w.metadata_only AND c.id IS NOT NULL THEN coalesce(octet_length(CAST(coalesce(o.payload, c.payload) AS text)), 0) <= 256 ELSE FALSE END`

// HawkbitAction returns the newest action of a device. If the device had none, the ID of the action is 0.
func (s hawkbit) HawkbitAction(ctx context.Context, device string) (HawkbitAction, error) {
	return s.readSession().hawkbitAction(ctx, device)
}

func (s session) hawkbitAction(ctx context.Context, device string) (HawkbitAction, error) {
	// A deleted device has no row in devices, but may still report the end of its action.
	return queryOne(ctx, s, hawkbitScanDest, `
		SELECT `+hawkbitColumns+` FROM (SELECT CAST($1 AS text) AS id) AS asked LEFT JOIN devices d ON d.id = asked.id
			LEFT JOIN hawkbit_actions a ON a.device = asked.id LEFT JOIN tasks o ON o.id = a.task
			LEFT JOIN batches c ON c.id = o.batch LEFT JOIN profiles w ON w.name = d.profile`, device)
}

// UpdateHawkbitAction compares the newest action of a device with the grant that the device holds: grantTask and grantToken, or 0 without a
// grant. If the grant is newer than the action, the grant gets an action with the next number. If the grant of an open action ended without
// a result, the action becomes an overrun, because the device may have continued without a slot. hasOverrun is true if this call recorded
// the overrun.
//
// If the returned action has another token, the grant is older than the newest action.
func (s hawkbit) UpdateHawkbitAction(ctx context.Context, device string, grantTask, grantToken int64) (action HawkbitAction, hasOverrun bool, err error) {
	action, err = s.HawkbitAction(ctx, device)
	if err != nil || action.Token == grantToken || grantToken == 0 && action.State != HawkbitOpen {
		return action, false, err
	}
	err = s.write(ctx, func(tx session) (err error) {
		action, hasOverrun, err = tx.updateHawkbitAction(ctx, device, grantTask, grantToken)
		return err
	})
	if err != nil {
		return action, false, fmt.Errorf("updating the action of a DDI device: %w", err)
	}
	return action, hasOverrun, nil
}

func (s session) updateHawkbitAction(ctx context.Context, device string, grantTask, grantToken int64) (_ HawkbitAction, hasOverrun bool, err error) {
	if err := s.addHawkbitRow(ctx, device); err != nil {
		return HawkbitAction{}, false, err
	}
	last := HawkbitAction{}
	if err := s.scanRow(ctx, []any{&last.Task, &last.Token, &last.State}, `SELECT task, token, state FROM hawkbit_actions WHERE device = $1 FOR UPDATE`, device); err != nil {
		return HawkbitAction{}, false, fmt.Errorf("locking the action: %w", err)
	}
	if last.State == HawkbitOpen && last.Token != grantToken {
		if hasOverrun, err = s.endOpenAction(ctx, device, last); err != nil {
			return HawkbitAction{}, false, err
		}
	}
	if grantToken > last.Token {
		if _, err := s.exec(ctx, `UPDATE hawkbit_actions SET action = last + 1, last = last + 1, task = $2, token = $3, state = 'open' WHERE device = $1`,
			device, grantTask, grantToken); err != nil {
			return HawkbitAction{}, false, fmt.Errorf("numbering an action: %w", err)
		}
	}
	action, err := s.hawkbitAction(ctx, device)
	return action, hasOverrun, err
}

// addHawkbitRow adds the row of a device, if the device has none. The numbers of its actions begin above the numbers that lost parts of the
// ledger may have used.
func (s session) addHawkbitRow(ctx context.Context, device string) error {
	_, err := s.exec(ctx, `INSERT INTO hawkbit_actions (device, last) SELECT $1, CAST($2 AS integer) * count(*) FROM restores WHERE TRUE ON CONFLICT DO NOTHING`, device, hawkbitJump)
	return err
}

// endOpenAction ends openAction of a device, unless the grant of the action is in force. isOverrun is true if the grant has ended without a
// result. The end of an action asks the device for its attributes, as EndHawkbitAction does.
func (s session) endOpenAction(ctx context.Context, device string, openAction HawkbitAction) (isOverrun bool, err error) {
	var isHeld bool
	var endedBy EndCause
	if err := s.scanRow(ctx, []any{&isHeld, &endedBy}, `
		SELECT EXISTS (SELECT 1 FROM grants WHERE task = $1 AND token = $2), (SELECT ended_by FROM attempts WHERE token = $2)`, openAction.Task, openAction.Token); err != nil {
		return false, fmt.Errorf("reading whether a grant is open: %w", err)
	}
	state := HawkbitOverrun
	switch {
	case isHeld:
		return false, nil
	case endedBy == BySuccess:
		state = HawkbitInstalled
	case endedBy.isResult():
		state = HawkbitClosed
	}
	if _, err := s.exec(ctx, `UPDATE hawkbit_actions SET state = $2, asks = TRUE WHERE device = $1`, device, string(state)); err != nil || state != HawkbitOverrun {
		return false, err
	}
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
		SELECT {now}, 'device.overrun', a.device, 'device', coalesce(t.pool, ''), coalesce(t.batch, 0), a.task, a.device, a.token, $2
		FROM hawkbit_actions a LEFT JOIN tasks t ON t.id = a.task WHERE a.device = $1`, device, "wire=hawkbit ended_by="+string(endedBy))
	return true, err
}

// EndHawkbitAction records that the device reported the end of an action. The next answer to a poll that reads the ledger asks
// the device for its attributes.
func (s hawkbit) EndHawkbitAction(ctx context.Context, device string, actionID int64, endState HawkbitState) error {
	_, err := s.execInTx(ctx, `UPDATE hawkbit_actions SET state = $3, asks = TRUE WHERE device = $1 AND action = $2`, device, actionID, string(endState))
	return err
}

// RecordHawkbitAttributes records that the device has sent its attributes.
func (s hawkbit) RecordHawkbitAttributes(ctx context.Context, device string) error {
	return s.write(ctx, func(tx session) error {
		if err := tx.addHawkbitRow(ctx, device); err != nil {
			return err
		}
		_, err := tx.exec(ctx, `UPDATE hawkbit_actions SET asks = FALSE WHERE device = $1`, device)
		return err
	})
}

// WithdrawHawkbitCancel withdraws the request to stop a task, because its device refused. If the grant has ended, it does nothing.
func (s hawkbit) WithdrawHawkbitCancel(ctx context.Context, task, token int64) error {
	return s.write(ctx, func(tx session) error {
		n, err := tx.exec(ctx, `UPDATE grants SET cancel_why = '' WHERE task = $1 AND token = $2 AND cancel_why <> ''`, task, token)
		if err != nil || n == 0 {
			return err
		}
		_, err = tx.exec(ctx, `
			INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
			SELECT {now}, 'task.cancel_refused', device, 'device', pool, batch, task, device, token, '' FROM grants WHERE task = $1`, task)
		return err
	})
}

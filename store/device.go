package store

import (
	"encoding/json"
	"time"
)

// Device is a field device.
type Device struct {
	ID         string
	Blocked    bool
	OwnToken   bool              // has used a token of its own: fleet tokens no longer act for it
	Tags       map[string]string // the operator's
	Attributes json.RawMessage   // the device's; a JSON object
	CreatedAt  time.Time
	LastSeen   *time.Time // to within a minute
}

// Token is a credential; only the SHA-256 of its secret is stored.
type Token struct {
	ID        int64
	Name      string
	Device    string // set: this device's credential; empty: an operator's
	Role      string // operator tokens: viewer, operator, admin, verifier
	CreatedAt time.Time
	ExpiresAt *time.Time
}

// Event is one entry of the activity and audit log.
type Event struct {
	ID     int64
	At     time.Time
	Kind   string // e.g. task.granted, task.succeeded, slot.reaped, pool.changed
	Actor  string // operator token's name, device id or "reaper"
	Pool   string
	Batch  int64
	Task   int64
	Device string
	Token  int64
	Detail string
}

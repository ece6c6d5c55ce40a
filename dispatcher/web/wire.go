package web

import (
	"encoding/json"
	"time"
)

// What the operators' API says, as far as pages show it.

type poolJSON struct {
	Name        string          `json:"name"`
	Capacity    int             `json:"capacity"`
	LeaseMS     int64           `json:"lease_ms"`
	Paused      bool            `json:"paused"`
	PausedBy    string          `json:"paused_by"`
	PausedAt    *time.Time      `json:"paused_at"`
	PauseReason string          `json:"pause_reason"`
	Windows     json.RawMessage `json:"windows"`
	OpensAt     *time.Time      `json:"opens_at"`
	ClosesAt    *time.Time      `json:"closes_at"`
	Held        int             `json:"held"`
	Waiting     int             `json:"waiting"`
	Oldest      *time.Time      `json:"oldest_pending_at"`
}

type slotsJSON struct {
	Pool     string     `json:"pool"`
	Capacity int        `json:"capacity"`
	Held     int        `json:"held"`
	Reserved int        `json:"reserved"`
	Waiting  int        `json:"waiting"`
	Oldest   *time.Time `json:"oldest_pending_at"`
	Slots    []slotJSON `json:"slots"`
}

type slotJSON struct {
	Slot       int        `json:"slot"`
	State      string     `json:"state"`
	Device     string     `json:"device"`
	Task       int64      `json:"task"`
	Token      int64      `json:"token"`
	Since      *time.Time `json:"since"`
	LeaseUntil *time.Time `json:"lease_until"`
}

type batchJSON struct {
	ID             int64            `json:"id"`
	Name           string           `json:"name"`
	Pool           string           `json:"pool"`
	Kind           string           `json:"kind"`
	State          string           `json:"state"`
	Priority       int              `json:"priority"`
	Weight         int              `json:"weight"`
	NotBefore      *time.Time       `json:"not_before"`
	NotAfter       *time.Time       `json:"not_after"`
	OpensAt        *time.Time       `json:"opens_at"`
	ClosesAt       *time.Time       `json:"closes_at"`
	MaxAttempts    int              `json:"max_attempts"`
	RetryOn        []string         `json:"retry_on"`
	RetryBackoffMS int64            `json:"retry_backoff_ms"`
	OnLost         string           `json:"on_lost"`
	LeaseMS        int64            `json:"lease_ms"`
	MaxRunMS       int64            `json:"max_run_ms"`
	PausedBy       string           `json:"paused_by"`
	PausedAt       *time.Time       `json:"paused_at"`
	PauseReason    string           `json:"pause_reason"`
	Created        time.Time        `json:"created_at"`
	Total          int64            `json:"total"`
	Counts         map[string]int64 `json:"counts"`
	Rate           *float64         `json:"rate_per_minute"`
	ETA            *time.Time       `json:"eta"`
	Abort          *struct {
		Failure float64 `json:"failure"`
		Min     int64   `json:"min"`
	} `json:"abort"`
	Windows []struct {
		Cron     string `json:"cron"`
		Duration string `json:"duration"`
		Timezone string `json:"timezone"`
	} `json:"windows"`
	Limits json.RawMessage `json:"limits"`
}

type taskJSON struct {
	ID       int64           `json:"id"`
	Batch    int64           `json:"batch"`
	Pool     string          `json:"pool"`
	Device   string          `json:"device"`
	Kind     string          `json:"kind"`
	Payload  json.RawMessage `json:"payload"`
	Priority int             `json:"priority"`
	State    string          `json:"state"`
	Counted  int             `json:"attempts_counted"`
	RetryAt  *time.Time      `json:"retry_at"`
	Created  time.Time       `json:"created_at"`
	Finished *time.Time      `json:"finished_at"`
	Output   json.RawMessage `json:"output"`
	Dropped  bool            `json:"output_dropped"`
	Error    string          `json:"error"`
	Grant    *grantJSON      `json:"grant"`
	Attempts []attemptJSON   `json:"attempts"`
}

type grantJSON struct {
	Token       int64     `json:"token"`
	Pool        string    `json:"pool"`
	Slot        int       `json:"slot"`
	Attempt     int       `json:"attempt"`
	Granted     time.Time `json:"granted_at"`
	LeaseUntil  time.Time `json:"lease_until"`
	Redelivered int       `json:"redelivered"`
	Cancel      string    `json:"cancel"`
}

type attemptJSON struct {
	Attempt int             `json:"attempt"`
	Token   int64           `json:"token"`
	Device  string          `json:"device"`
	Slot    int             `json:"slot"`
	Granted time.Time       `json:"granted_at"`
	Ended   time.Time       `json:"ended_at"`
	EndedBy string          `json:"ended_by"`
	Output  json.RawMessage `json:"output"`
	Dropped bool            `json:"output_dropped"`
	Error   string          `json:"error"`
}

type whyJSON struct {
	State   string `json:"state"`
	Reasons []struct {
		Code           string     `json:"code"`
		Detail         string     `json:"detail"`
		Until          *time.Time `json:"until"`
		Position       *int       `json:"position"`
		EstimatedStart *time.Time `json:"estimated_start"`
		Remedy         string     `json:"remedy"`
	} `json:"reasons"`
}

type eventJSON struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Kind   string    `json:"kind"`
	Actor  string    `json:"actor"`
	Pool   string    `json:"pool"`
	Batch  int64     `json:"batch"`
	Task   int64     `json:"task"`
	Device string    `json:"device"`
	Token  int64     `json:"token"`
	Detail string    `json:"detail"`
}

type deviceJSON struct {
	ID         string            `json:"id"`
	Blocked    bool              `json:"blocked"`
	OwnToken   bool              `json:"own_token"`
	Tags       map[string]string `json:"tags"`
	Attributes json.RawMessage   `json:"attributes"`
	Created    time.Time         `json:"created_at"`
	LastSeen   *time.Time        `json:"last_seen"`
}

// Lists come in pages.

type poolListJSON struct {
	Pools []poolJSON `json:"pools"`
	Next  string     `json:"next_page_token"`
}

type batchListJSON struct {
	Batches []batchJSON `json:"batches"`
	Next    string      `json:"next_page_token"`
}

type taskListJSON struct {
	Tasks []taskJSON `json:"tasks"`
	Next  string     `json:"next_page_token"`
}

type eventListJSON struct {
	Events []eventJSON `json:"events"`
	Next   string      `json:"next_page_token"`
}

type deviceListJSON struct {
	Devices []deviceJSON `json:"devices"`
	Next    string       `json:"next_page_token"`
}

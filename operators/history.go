package operators

import (
	"time"
)

// Holding is a period in which a device held a slot.
type Holding struct {
	Slot    int    `json:"slot"`
	Device  string `json:"device"`
	Task    int64  `json:"task"`
	Batch   int64  `json:"batch"`
	Token   int64  `json:"token"`
	Attempt int    `json:"attempt"`
	Granted Time   `json:"granted_at"`
	Ended   *Time  `json:"ended_at" nullable:"true" doc:"null: the device holds the slot"`
	EndedBy string `json:"ended_by" doc:"succeeded, failed, rejected, returned: the device sent this result; lapsed: the lease ended; released: an operator freed the slot at once; empty: the device holds the slot"`
	Pool    string `json:"pool"`
	Error   string `json:"error" doc:"The first 200 characters of the error that the device sent"`
}

// The values of EndedBy for holdings that were not ended by a result of the device.
const (
	EndedByLapse   = "lapsed"
	EndedByRelease = "released"
)

// HoldingList is a page of the history of a pool or a device.
type HoldingList struct {
	History       []Holding `json:"history"`
	NextPageToken string    `json:"next_page_token,omitempty"`
}

// HistoryFilter selects the holdings that match all fields that are set.
type HistoryFilter struct {
	Slot  string    `query:"slot" maxLength:"11" doc:"A slot, or the first and the last slot of a range: 17, 60-119" flag:"only this slot, or a range of slots: 17, 60-119"`
	From  time.Time `query:"from" doc:"Only grants that ended at this time or later, or are in force"`
	To    time.Time `query:"to" doc:"Only grants that ended before this time; absent: also grants in force"`
	Order string    `query:"order" enum:"newest,oldest" default:"newest" doc:"Sort order, by end; grants in force count as newest" flag:"order by the end: newest or oldest first (default \"newest\")"`
}

// SeriesQuery selects the length of a series.
type SeriesQuery struct {
	Range string `query:"range" enum:"1h,24h,7d" default:"1h" doc:"Length of the series; its steps are 1 min, 10 min or 1 h" flag:"1h, 24h or 7d (default \"1h\")"`
}

// Series is the number of held slots of a pool over time, in steps of equal length. The last step is still in progress.
type Series struct {
	Pool   string        `json:"pool"`
	From   Time          `json:"from" doc:"Start of the first step"`
	To     Time          `json:"to" doc:"The current time of the ledger"`
	StepMS int64         `json:"step_ms"`
	Points []SeriesPoint `json:"points" doc:"Oldest first; none is before the creation of the pool"`
}

// SeriesPoint is one step of a Series.
type SeriesPoint struct {
	At       Time  `json:"at" doc:"End of the step"`
	Held     int   `json:"held" doc:"Slots held at the end of the step"`
	HeldMin  int   `json:"held_min" doc:"Lowest number of held slots at the end of a minute in this step"`
	HeldMax  int   `json:"held_max" doc:"Highest number of held slots at the end of a minute in this step"`
	Capacity int   `json:"capacity" doc:"Capacity at the end of the step"`
	Granted  int64 `json:"granted" doc:"Grants in this step"`
	Ended    int64 `json:"ended" doc:"Grants that ended in this step"`
	Lapsed   int64 `json:"lapsed" doc:"Grants in this step that ended because the lease ended"`
	Failed   int64 `json:"failed" doc:"Attempts that failed in this step, with those in lapsed. Some of the tasks are tried again"`

	GrantedDayBefore *int64 `json:"granted_day_before" nullable:"true" doc:"As granted, one day earlier; null: the pool did not exist. In the last step up to the same time of day"`
	FailedDayBefore  *int64 `json:"failed_day_before" nullable:"true" doc:"As failed, one day earlier"`
}

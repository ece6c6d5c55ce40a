package operators

import (
	"net/url"
	"time"
)

// FailureQuery selects the attempts that Failures counts, and how they are grouped.
type FailureQuery struct {
	By    []string  `query:"by" maxItems:"2" doc:"At most two of tags.NAME and attributes.NAME: the attempts are grouped by the present values of their devices. attributes.a.b is the member b of the object a" flag:"at most two keys, such as tags.model,attributes.firmware"`
	Since time.Time `query:"since" doc:"Only attempts that ended at this time or later. Default: the last hour" flag:"only attempts that ended at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z (default: the last hour)"`
}

// Values returns the query parameters of the query.
func (q FailureQuery) Values() url.Values { return queryParams(q) }

// Failures counts the attempts of a pool or of a batch that ended, and those that failed, in groups of devices.
type Failures struct {
	FailureCount
	IsSample bool           `json:"is_sample" doc:"true: more attempts ended in this time; only the latest were counted"`
	By       []string       `json:"by" doc:"The keys of the groups"`
	Groups   []FailureGroup `json:"groups" doc:"At most 50, the most failures first"`
	Rest     *FailureCount  `json:"rest,omitempty" doc:"All other groups together"`
	Keys     []string       `json:"keys" doc:"At most 100 keys by which attempts can be grouped. The key by whose values the failure rate differs most comes first"`
}

// FailureCount is a number of attempts.
type FailureCount struct {
	Ended  int     `json:"ended" doc:"Attempts that ended"`
	Failed int     `json:"failed" doc:"Of ended: the device failed or rejected the task, or its lease ended"`
	Rate   float64 `json:"rate" doc:"failed / ended; 0 if none ended"`
}

// FailureGroup counts the attempts of the devices that have the same values of the grouping tags and attributes.
type FailureGroup struct {
	Values []*string `json:"values" nullable:"false" doc:"The value of each key; null: devices without this key"`
	FailureCount
}

package operators

import (
	"encoding/json"
	"net/url"
	"time"
)

// ResultQuery selects the results of a batch and what their summary contains.
type ResultQuery struct {
	State     string    `query:"state" enum:"succeeded,failed,timed_out,cancelled,expired,suppressed" doc:"Only results with this state; default: all states" flag:"only results of tasks in this state: succeeded, failed, timed_out, cancelled, expired, suppressed"`
	Fields    []string  `query:"fields" doc:"Fields of the outputs, at most 50: net.rtt is the member rtt of the object net; a dot alone is an output that is no object. Default: whole outputs" flag:"output fields to show, e.g. down_mbps,net.rtt (default: the first fields; with --csv: all)"`
	Aggregate string    `query:"aggregate" maxLength:"200" doc:"A field whose values are summarized" flag:"summarize this field: percentiles and a histogram for numbers, counts for text"`
	ByTag     string    `query:"by_tag" maxLength:"64" doc:"The name of a tag by which results are counted" flag:"count results by this tag of the devices"`
	Since     time.Time `query:"since" doc:"Only results that ended at this time or later, such as 2026-11-21T14:00:00Z" flag:"only results of tasks that ended at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z"`
	Until     time.Time `query:"until" doc:"Only results that ended before this time" flag:"only results of tasks that ended before this time"`
	Sample    int       `query:"sample" minimum:"1" maximum:"50000" default:"10000" doc:"Maximum number of results that the summary reads; at most 1000 without aggregate and by_tag" flag:"maximum number of results for the summary, 1 to 50000 (default 10000)"`
}

// Values returns the query parameters of a request for the results that q selects.
func (q ResultQuery) Values() url.Values { return queryParams(q) }

// Results is a page of the results of a batch.
type Results struct {
	Results       []Result       `json:"results"`
	Summary       *ResultSummary `json:"summary,omitempty" doc:"Only on the first page"`
	NextPageToken string         `json:"next_page_token,omitempty"`
}

// Result is the result of a task that has ended.
type Result struct {
	Task     int64           `json:"task"`
	Device   string          `json:"device"`
	State    string          `json:"state" enum:"succeeded,failed,timed_out,cancelled,expired,suppressed"`
	Ended    *Time           `json:"ended_at" nullable:"true"`
	Duration *int64          `json:"duration_ms" nullable:"true" doc:"How long the last attempt held its slot; null: no attempt"`
	Error    string          `json:"error"`
	Output   json.RawMessage `json:"output" doc:"The output of the task; with fields, an object of the fields that it has"`
	Dropped  bool            `json:"output_dropped,omitempty" doc:"true: the device sent an output over 32 KiB, which was dropped"`
}

// ResultSummary summarizes all results of the query, or a sample of them.
type ResultSummary struct {
	Progress      []BatchProgress `json:"progress" doc:"Progress of the whole batch over time, at most 102 points: its beginning, and the last change in each of 100 intervals. The last point is now, or the end of a batch that has ended"`
	Errors        []ErrorCount    `json:"errors" doc:"The 20 most frequent errors of the tasks of the batch that failed or timed out, between since and until"`
	ErrorsSampled int64           `json:"errors_sampled" doc:"Number of tasks whose errors were read: the first ones of each of the two states, at most sample per state"`
	ErrorsTotal   int64           `json:"errors_of" doc:"Number of tasks of the batch that failed or timed out"`
	Sampled       int64           `json:"sampled" doc:"Number of results that the fields below summarize: results that were read and ended between since and until"`
	Scanned       int64           `json:"looked" doc:"Number of results that were read"`
	Matching      int64           `json:"of" doc:"Number of results that match the query, whatever their end time"`
	Fields        []OutputField   `json:"fields" doc:"Fields of the sampled outputs, in the order of their first occurrence; at most 200"`
	Aggregate     *Aggregate      `json:"aggregate,omitempty"`
	ByTag         []TagCount      `json:"by_tag,omitempty" doc:"The 20 values with the most failures, then the most results"`
	ByTagRest     *TagCount       `json:"by_tag_rest,omitempty" doc:"All other values together"`
}

// BatchProgress is the number of tasks of a batch that had ended at one time.
type BatchProgress struct {
	At            Time    `json:"at"`
	Ended         int64   `json:"ended"`
	Failed        int64   `json:"failed" doc:"Number of these results that failed or timed out"`
	RatePerMinute float64 `json:"rate_per_minute" doc:"Rate since the previous point, or over 5 s if that is longer; negative if tasks were retried"`
}

// ErrorCount is an error and the number of tasks that ended with it.
type ErrorCount struct {
	Error string `json:"error" doc:"The first 200 characters"`
	Tasks int64  `json:"tasks"`
}

// OutputField is a field that occurs in the outputs of tasks.
type OutputField struct {
	Name  string `json:"name"`
	Type  string `json:"type" enum:"number,text,boolean,null,list,object,mixed" doc:"Type of the value; object means an empty object"`
	Tasks int64  `json:"tasks"`
}

// Aggregate summarizes the values of a field.
type Aggregate struct {
	Field  string        `json:"field"`
	Tasks  int64         `json:"tasks" doc:"Number of tasks with the field; null counts as absent"`
	Number *NumberValues `json:"number,omitempty" doc:"Absent: no value is a number"`
	Values []ValueCount  `json:"values,omitempty" doc:"The 20 most frequent values that are text, true or false"`
	Rest   int64         `json:"rest" doc:"Number of tasks with another text"`
	Other  int64         `json:"other" doc:"Number of tasks with a list, an object or a number beyond 64 bits"`
}

// NumberValues summarizes numbers.
type NumberValues struct {
	Count     int64   `json:"count"`
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
	Mean      float64 `json:"mean"`
	P5        float64 `json:"p5" doc:"Percentiles are interpolated linearly between two values"`
	P50       float64 `json:"p50"`
	P95       float64 `json:"p95"`
	P99       float64 `json:"p99"`
	Histogram []Bin   `json:"histogram" doc:"At most 20 bars"`
}

// Bin counts the numbers n with From <= n < To.
type Bin struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Tasks int64   `json:"tasks"`
}

// ValueCount is a value and the number of tasks that have it.
type ValueCount struct {
	Value string `json:"value" doc:"The first 200 characters"`
	Tasks int64  `json:"tasks"`
}

// TagCount counts the results of devices with one value of a tag.
type TagCount struct {
	Value  *string `json:"value" nullable:"true" doc:"null: devices without the tag; in by_tag_rest: various values"`
	Ended  int64   `json:"ended"`
	Failed int64   `json:"failed" doc:"Number of these results that failed or timed out"`
}

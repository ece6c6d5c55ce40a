package operators

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ResultQuery selects the results of a batch and what their summary contains.
type ResultQuery struct {
	State     string    `query:"state" enum:"succeeded,failed,timed_out,cancelled,expired,suppressed" doc:"Default: all that have ended"`
	Fields    []string  `query:"fields" doc:"Of the outputs, at most 50: net.rtt is the member rtt of the object net, . an output that is no object. Default: outputs as they came"`
	Aggregate string    `query:"aggregate" maxLength:"200" doc:"A field whose values are summed up"`
	ByTag     string    `query:"by_tag" maxLength:"64" doc:"The name of a tag by which results are counted"`
	Since     time.Time `query:"since" doc:"Those that ended at that time or later: 2026-11-21T14:00:00Z"`
	Until     time.Time `query:"until" doc:"Those that ended before that time"`
	Sample    int       `query:"sample" minimum:"1" maximum:"50000" default:"10000" doc:"Results that the summary looks at; 1000 at most without aggregate and by_tag"`
}

// Values returns the query parameters of q.
func (q ResultQuery) Values() url.Values {
	sample := ""
	if q.Sample != 0 {
		sample = strconv.Itoa(q.Sample)
	}
	return Query("state", q.State, "fields", strings.Join(q.Fields, ","), "aggregate", q.Aggregate, "by_tag", q.ByTag, "since", timeOrEmpty(q.Since), "until", timeOrEmpty(q.Until), "sample", sample)
}

// Results is a page of the results of a batch.
type Results struct {
	Results       []Result       `json:"results"`
	Summary       *ResultSummary `json:"summary,omitempty" doc:"With the first page only"`
	NextPageToken string         `json:"next_page_token,omitempty"`
}

// Result is the result of a task that has ended.
type Result struct {
	Task     int64           `json:"task"`
	Device   string          `json:"device"`
	State    string          `json:"state" enum:"succeeded,failed,timed_out,cancelled,expired,suppressed"`
	Ended    *Time           `json:"ended_at" nullable:"true"`
	Duration *int64          `json:"duration_ms" nullable:"true" doc:"For which its last attempt held a slot; null: there was none"`
	Error    string          `json:"error"`
	Output   json.RawMessage `json:"output" doc:"With fields: an object of those that it has, by their names"`
	Dropped  bool            `json:"output_dropped,omitempty" doc:"As of the task"`
}

// ResultSummary summarizes all results of the query, or a sample of them.
type ResultSummary struct {
	Progress      []BatchProgress `json:"progress" doc:"Of the whole batch, at most 102: its beginning, and the last change in each of 100 spans; the last is now, or the last end of a batch that has ended"`
	Errors        []ErrorCount    `json:"errors" doc:"The 20 most frequent ones of the tasks of the batch that failed or timed out, between since and until"`
	ErrorsSampled int64           `json:"errors_sampled" doc:"Tasks whose errors were looked at, the first ones of each of the two states; at most sample of each"`
	ErrorsTotal   int64           `json:"errors_of" doc:"Tasks of the batch that failed or timed out"`
	Sampled       int64           `json:"sampled" doc:"Results that the members below are about: those looked at that ended between since and until"`
	Scanned       int64           `json:"looked" doc:"Results that were looked at for them"`
	Matching      int64           `json:"of" doc:"Results of the query, whenever they ended"`
	Fields        []OutputField   `json:"fields" doc:"Of the sampled outputs, in the order in which they were first seen; at most 200"`
	Aggregate     *Aggregate      `json:"aggregate,omitempty"`
	ByTag         []TagCount      `json:"by_tag,omitempty" doc:"The 20 values with the most failures, then results"`
	ByTagRest     *TagCount       `json:"by_tag_rest,omitempty" doc:"All other values together"`
}

// BatchProgress is the number of tasks of a batch that had ended at one time.
type BatchProgress struct {
	At            Time    `json:"at"`
	Ended         int64   `json:"ended"`
	Failed        int64   `json:"failed" doc:"Of them; timed out included"`
	RatePerMinute float64 `json:"rate_per_minute" doc:"Since the moment before, or over 5 s if that is longer; below 0 where tasks were retried"`
}

// ErrorCount is an error and the number of tasks that ended with it.
type ErrorCount struct {
	Error string `json:"error" doc:"Its first 200 characters"`
	Tasks int64  `json:"tasks"`
}

// OutputField is a field of outputs.
type OutputField struct {
	Name  string `json:"name"`
	Type  string `json:"type" enum:"number,text,boolean,null,list,object,mixed" doc:"object: an empty one"`
	Tasks int64  `json:"tasks"`
}

// Aggregate summarizes the values of a field.
type Aggregate struct {
	Field  string        `json:"field"`
	Tasks  int64         `json:"tasks" doc:"That have the field; null is none"`
	Number *NumberValues `json:"number,omitempty" doc:"Absent: no value is a number"`
	Values []ValueCount  `json:"values,omitempty" doc:"The 20 most frequent ones of text, true and false"`
	Rest   int64         `json:"rest" doc:"Tasks with other text than that"`
	Other  int64         `json:"other" doc:"Tasks with a list, an object or a number beyond 64 bits"`
}

// NumberValues summarizes numbers.
type NumberValues struct {
	Count     int64   `json:"count"`
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
	Mean      float64 `json:"mean"`
	P5        float64 `json:"p5" doc:"Between two values: on the line from one to the other"`
	P50       float64 `json:"p50"`
	P95       float64 `json:"p95"`
	P99       float64 `json:"p99"`
	Histogram []Bin   `json:"histogram" doc:"At most 20"`
}

// Bin counts the numbers n with From <= n < To.
type Bin struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Tasks int64   `json:"tasks"`
}

// ValueCount is a value and the number of tasks that have it.
type ValueCount struct {
	Value string `json:"value" doc:"Its first 200 characters"`
	Tasks int64  `json:"tasks"`
}

// TagCount counts the results of devices with one value of a tag.
type TagCount struct {
	Value  *string `json:"value" nullable:"true" doc:"null: without the tag; of the rest: its values differ"`
	Ended  int64   `json:"ended"`
	Failed int64   `json:"failed" doc:"Of them; timed out included"`
}

// Results returns the first page of the results of a batch, and the summary. To list all results, call Client.List with
// the path of this operation; to copy them as CSV, call Client.Copy.
func (c Batches) Results(ctx context.Context, id int64, q ResultQuery) (Results, error) {
	return getJSON[Results](ctx, c.client, Path("batches", decimal(id), "results"), q.Values())
}

package api

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxListedFields = 200 // maximum number of fields that are listed
	maxTagValues    = 20
)

// resultCollector collects the summary of a sample of results.
type resultCollector struct {
	scanned  int64 // results of the sample
	sampled  int64 // results of the sample that ended between since and until
	since    time.Time
	until    time.Time
	fields   map[string]*operators.OutputField
	order    []*operators.OutputField // the fields in the order of their first occurrence
	values   *aggregate
	tag      string
	byTag    map[string]*operators.TagCount
	untagged operators.TagCount
}

// newResultCollector returns a collector for the parts of the summary that query asks for.
func newResultCollector(query *resultQuery) *resultCollector {
	l := &resultCollector{since: query.Since, until: query.Until, fields: map[string]*operators.OutputField{}, tag: query.ByTag, byTag: map[string]*operators.TagCount{}}
	if query.Aggregate != "" {
		l.values = &aggregate{field: query.Aggregate}
	}
	return l
}

func (l *resultCollector) addResult(result store.SampledResult) {
	l.scanned++
	if !l.isInPeriod(result.Ended) {
		return
	}
	l.sampled++
	if l.tag != "" {
		l.countTag(result)
	}
	if len(result.Output) == 0 {
		return
	}
	l.addFields(result)
	if l.values == nil {
		return
	}
	if value := newFieldFinder(result.Output).find(l.values.field); value != nil {
		l.values.addValue(value)
	}
}

// isInPeriod reports whether the end of a task is in the period that the query asks for.
func (l *resultCollector) isInPeriod(ended *time.Time) bool {
	if ended == nil {
		return l.since.IsZero() && l.until.IsZero()
	}
	return !ended.Before(l.since) && (l.until.IsZero() || ended.Before(l.until))
}

func (l *resultCollector) addFields(result store.SampledResult) {
	for _, m := range flattenOutput(result.Output) {
		field, kind := l.fields[m.name], jsonType(m.value)
		if field == nil {
			if len(l.order) == maxListedFields {
				continue
			}
			field = &operators.OutputField{Name: m.name, Type: kind}
			l.fields[m.name], l.order = field, append(l.order, field)
		}
		field.Tasks++
		switch {
		case field.Type == "null":
			field.Type = kind
		case field.Type != kind && kind != "null":
			field.Type = "mixed"
		}
	}
}

// countTag counts result under the value of the tag that its device has.
func (l *resultCollector) countTag(result store.SampledResult) {
	count := &l.untagged
	if value, ok := result.Tags[l.tag]; ok {
		if count = l.byTag[value]; count == nil {
			count = &operators.TagCount{Value: &value}
			l.byTag[value] = count
		}
	}
	count.Ended++
	if result.State == store.Failed || result.State == store.TimedOut {
		count.Failed++
	}
}

// writeTo writes the collected values to the summary.
func (l *resultCollector) writeTo(summary *operators.ResultSummary) {
	summary.Scanned, summary.Sampled, summary.Fields = l.scanned, l.sampled, make([]operators.OutputField, len(l.order))
	for i, field := range l.order {
		summary.Fields[i] = *field
	}
	if l.values != nil {
		summary.Aggregate = l.values.summarize()
	}
	counts := slices.Collect(maps.Values(l.byTag))
	if l.untagged.Ended > 0 {
		counts = append(counts, &l.untagged)
	}
	slices.SortFunc(counts, func(x, y *operators.TagCount) int {
		return cmp.Or(cmp.Compare(y.Failed, x.Failed), cmp.Compare(y.Ended, x.Ended), cmp.Compare(tagValue(x), tagValue(y)))
	})
	for i, c := range counts {
		if i < maxTagValues {
			summary.ByTag = append(summary.ByTag, *c)
			continue
		}
		if summary.ByTagRest == nil {
			summary.ByTagRest = &operators.TagCount{}
		}
		summary.ByTagRest.Ended += c.Ended
		summary.ByTagRest.Failed += c.Failed
	}
}

func tagValue(count *operators.TagCount) string {
	if count.Value == nil {
		return ""
	}
	return *count.Value
}

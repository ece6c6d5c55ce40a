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
	scanned  int64
	sampled  int64 // results of the sample that ended between since and until
	since    time.Time
	until    time.Time
	fields   map[string]*operators.OutputField
	order    []*operators.OutputField
	values   *aggregate
	tag      string
	byTag    map[string]*operators.TagCount
	untagged operators.TagCount
}

func newResultCollector(q *resultQuery) *resultCollector {
	l := &resultCollector{since: q.Since, until: q.Until, fields: map[string]*operators.OutputField{}, tag: q.ByTag, byTag: map[string]*operators.TagCount{}}
	if q.Aggregate != "" {
		l.values = &aggregate{field: q.Aggregate}
	}
	return l
}

func (l *resultCollector) add(r store.SampledResult) {
	l.scanned++
	if !l.isInPeriod(r.Ended) {
		return
	}
	l.sampled++
	if l.tag != "" {
		l.countTag(r)
	}
	if len(r.Output) == 0 {
		return
	}
	l.addFields(r)
	if l.values == nil {
		return
	}
	if value := newFieldFinder(r.Output).find(l.values.field); value != nil {
		l.values.add(value)
	}
}

// isInPeriod reports whether a task ended between since and until.
func (l *resultCollector) isInPeriod(ended *time.Time) bool {
	if ended == nil {
		return l.since.IsZero() && l.until.IsZero()
	}
	return !ended.Before(l.since) && (l.until.IsZero() || ended.Before(l.until))
}

// addFields adds the fields of an output.
func (l *resultCollector) addFields(r store.SampledResult) {
	for _, m := range flattenOutput(r.Output) {
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

func (l *resultCollector) countTag(r store.SampledResult) {
	count := &l.untagged
	if value, ok := r.Tags[l.tag]; ok {
		if count = l.byTag[value]; count == nil {
			count = &operators.TagCount{Value: &value}
			l.byTag[value] = count
		}
	}
	count.Ended++
	if r.State == store.Failed || r.State == store.TimedOut {
		count.Failed++
	}
}

// writeTo writes the collected values to the summary.
func (l *resultCollector) writeTo(sum *operators.ResultSummary) {
	sum.Scanned, sum.Sampled, sum.Fields = l.scanned, l.sampled, make([]operators.OutputField, len(l.order))
	for i, field := range l.order {
		sum.Fields[i] = *field
	}
	if l.values != nil {
		sum.Aggregate = l.values.summarize()
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
			sum.ByTag = append(sum.ByTag, *c)
			continue
		}
		if sum.ByTagRest == nil {
			sum.ByTagRest = &operators.TagCount{}
		}
		sum.ByTagRest.Ended += c.Ended
		sum.ByTagRest.Failed += c.Failed
	}
}

func tagValue(c *operators.TagCount) string {
	if c.Value == nil {
		return ""
	}
	return *c.Value
}

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
	foundMost = 200 // maximum number of fields that are listed
	tagsMost  = 20
)

// look collects the summary of a sample of results.
type look struct {
	looked   int64
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

func newLook(q *resultQuery) *look {
	l := &look{since: q.Since, until: q.Until, fields: map[string]*operators.OutputField{}, tag: q.ByTag, byTag: map[string]*operators.TagCount{}}
	if q.Aggregate != "" {
		l.values = &aggregate{field: q.Aggregate}
	}
	return l
}

func (l *look) add(r store.Sampled) {
	l.looked++
	if !l.within(r.Ended) {
		return
	}
	l.sampled++
	if l.tag != "" {
		l.count(r)
	}
	if len(r.Output) == 0 {
		return
	}
	l.note(r)
	if l.values == nil {
		return
	}
	if value := pickerOf(r.Output).pick(l.values.field); value != nil {
		l.values.add(value)
	}
}

// within reports whether a task ended between since and until.
func (l *look) within(ended *time.Time) bool {
	if ended == nil {
		return l.since.IsZero() && l.until.IsZero()
	}
	return !ended.Before(l.since) && (l.until.IsZero() || ended.Before(l.until))
}

// note adds the fields of an output.
func (l *look) note(r store.Sampled) {
	for _, m := range flattened(r.Output) {
		field, kind := l.fields[m.name], typeOf(m.value)
		if field == nil {
			if len(l.order) == foundMost {
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

func (l *look) count(r store.Sampled) {
	of := &l.untagged
	if value, ok := r.Tags[l.tag]; ok {
		if of = l.byTag[value]; of == nil {
			of = &operators.TagCount{Value: &value}
			l.byTag[value] = of
		}
	}
	of.Ended++
	if r.State == store.Failed || r.State == store.TimedOut {
		of.Failed++
	}
}

// into writes the collected values to the summary.
func (l *look) into(sum *operators.ResultSummary) {
	sum.Looked, sum.Sampled, sum.Fields = l.looked, l.sampled, make([]operators.OutputField, len(l.order))
	for i, field := range l.order {
		sum.Fields[i] = *field
	}
	if l.values != nil {
		sum.Aggregate = l.values.sum()
	}
	counts := slices.Collect(maps.Values(l.byTag))
	if l.untagged.Ended > 0 {
		counts = append(counts, &l.untagged)
	}
	slices.SortFunc(counts, func(x, y *operators.TagCount) int {
		return cmp.Or(cmp.Compare(y.Failed, x.Failed), cmp.Compare(y.Ended, x.Ended), cmp.Compare(name(x), name(y)))
	})
	for i, c := range counts {
		if i < tagsMost {
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

func name(c *operators.TagCount) string {
	if c.Value == nil {
		return ""
	}
	return *c.Value
}

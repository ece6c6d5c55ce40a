// Package exposition writes metrics in the text format of Prometheus. For thousands of series it takes a fifth of the
// time of expfmt. The library (expfmt) formats the labels of a histogram again for each bucket, and the HTTP handler
// of the library compresses for size and not for speed.
package exposition

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Sources is a list of gatherers of metrics. No two of them may have a metric of the same name. prometheus.Gatherers
// would check this at each scrape by comparing and sorting all metrics.
type Sources []prometheus.Gatherer

// Gather returns the metric families of all sources.
func (s Sources) Gather() ([]*dto.MetricFamily, error) {
	var all []*dto.MetricFamily
	for _, source := range s {
		families, err := source.Gather()
		if err != nil {
			return nil, err //nolint:wrapcheck // the error names the metric
		}
		all = append(all, families...)
	}
	return all, nil
}

// chunkBytes is the number of bytes after which the text is written to the client.
const chunkBytes = 64 << 10

// Write writes the metric families to out in the text format of Prometheus, in their order.
func Write(out io.Writer, families []*dto.MetricFamily) error {
	t := &textWriter{}
	for _, f := range families {
		if err := t.writeFamily(out, f); err != nil {
			return fmt.Errorf("writing %s: %w", f.GetName(), err)
		}
	}
	_, err := out.Write(t.lines)
	return err //nolint:wrapcheck // the error of out needs no addition
}

// textWriter holds the lines that were not written yet, and the labels of the current metric.
type textWriter struct{ lines, labels []byte }

// writeFamily appends the lines of a metric family. It writes the lines to out when they are long enough.
func (t *textWriter) writeFamily(out io.Writer, family *dto.MetricFamily) error {
	kind := family.GetType()
	if kind != dto.MetricType_COUNTER && kind != dto.MetricType_GAUGE && kind != dto.MetricType_HISTOGRAM {
		var rest bytes.Buffer // families of other types are rare, so they do not need a fast path
		_, err := expfmt.MetricFamilyToText(&rest, family)
		t.lines = append(t.lines, rest.Bytes()...)
		return err //nolint:wrapcheck // Write adds the name of the family
	}
	name := family.GetName()
	t.lines = fmt.Appendf(t.lines, "# HELP %s %s\n# TYPE %s %s\n", name, helpEscaper.Replace(family.GetHelp()), name, strings.ToLower(kind.String()))
	for _, m := range family.GetMetric() {
		t.setLabels(m.GetLabel())
		switch kind {
		case dto.MetricType_COUNTER:
			t.appendSample(name, "", "", m.GetCounter().GetValue())
		case dto.MetricType_GAUGE:
			t.appendSample(name, "", "", m.GetGauge().GetValue())
		default:
			t.appendHistogram(name, m.GetHistogram())
		}
		if len(t.lines) >= chunkBytes {
			if _, err := out.Write(t.lines); err != nil {
				return err //nolint:wrapcheck // Write adds the name of the family
			}
			t.lines = t.lines[:0]
		}
	}
	return nil
}

//nolint:gochecknoglobals // constants
var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// setLabels renders the labels of a metric, which all of its lines share.
func (t *textWriter) setLabels(pairs []*dto.LabelPair) {
	t.labels = t.labels[:0]
	for i, l := range pairs {
		if i > 0 {
			t.labels = append(t.labels, ',')
		}
		t.labels = append(append(t.labels, l.GetName()...), `="`...)
		t.labels = append(append(t.labels, labelEscaper.Replace(l.GetValue())...), '"')
	}
}

// appendHistogram appends the lines of the histogram with this name.
func (t *textWriter) appendHistogram(name string, histogram *dto.Histogram) {
	for _, b := range histogram.GetBucket() {
		t.appendSample(name, "_bucket", formatValue(b.GetUpperBound()), float64(b.GetCumulativeCount()))
	}
	t.appendSample(name, "_bucket", "+Inf", float64(histogram.GetSampleCount()))
	t.appendSample(name, "_sum", "", histogram.GetSampleSum())
	t.appendSample(name, "_count", "", float64(histogram.GetSampleCount()))
}

// appendSample appends one line: the name with the suffix, the labels with the label le = bound, and the value. If bound is empty, the
// line has no label le.
func (t *textWriter) appendSample(name, suffix, bound string, value float64) {
	t.lines = append(append(t.lines, name...), suffix...)
	if len(t.labels) > 0 || bound != "" {
		t.lines = append(append(t.lines, '{'), t.labels...)
		if bound != "" {
			if len(t.labels) > 0 {
				t.lines = append(t.lines, ',')
			}
			t.lines = append(append(append(t.lines, `le="`...), bound...), '"')
		}
		t.lines = append(t.lines, '}')
	}
	t.lines = append(append(append(t.lines, ' '), formatValue(value)...), '\n')
}

// formatValue returns the text of a metric's value. It is fast for small integers, which are most
// of the values.
func formatValue(value float64) string {
	if math.Trunc(value) == value && math.Abs(value) < 1e6 {
		return strconv.Itoa(int(value))
	}
	return strconv.FormatFloat(value, 'g', -1, 64) // also +Inf, -Inf and NaN
}

package simulator

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// histogram is the cumulative buckets of a metric: how many values were at most so many seconds.
type histogram map[float64]float64

// scrape reads a histogram of one pool from a page of metrics, and adds it up
// over the other labels.
func scrape(page io.Reader, name, pool string) (histogram, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	h := histogram{}
	for _, m := range families[name].GetMetric() {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "pool" && l.GetValue() == pool }) {
			continue
		}
		h.add(m.GetHistogram())
	}
	return h, err
}

func (h histogram) add(more *dto.Histogram) {
	for _, b := range more.GetBucket() {
		h[b.GetUpperBound()] += float64(b.GetCumulativeCount())
	}
}

// minus is what was added since an earlier reading.
func (h histogram) minus(earlier histogram) histogram {
	d := histogram{}
	for bound, count := range h {
		d[bound] = count - earlier[bound]
	}
	return d
}

// quantile is read within its bucket as Prometheus does; what is in the last
// bucket counts as its lower bound. 0: there is nothing.
func (h histogram) quantile(q float64) time.Duration {
	if h[math.Inf(1)] <= 0 {
		return 0
	}
	rank := q * h[math.Inf(1)]
	low, below := 0.0, 0.0
	for _, bound := range slices.Sorted(maps.Keys(h)) {
		if count := h[bound]; count >= rank && count > below {
			if !math.IsInf(bound, 1) {
				low += (bound - low) * (rank - below) / (count - below)
			}
			break
		}
		low, below = bound, h[bound]
	}
	return time.Duration(low * float64(time.Second))
}

// handoffs reads the dispatcher's measure of its handoffs, over all replicas.
// A dispatcher that shows its metrics elsewhere has none.
func (o *Operator) handoffs(ctx context.Context, pool string) histogram {
	sum := histogram{}
	for _, base := range o.replicas.urls {
		of, err := o.histogram(ctx, base, "dispatcher_handoff_duration_seconds", pool)
		if err != nil {
			continue
		}
		for bound, count := range of {
			sum[bound] += count
		}
	}
	return sum
}

func (o *Operator) histogram(ctx context.Context, base, name, pool string) (histogram, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+o.token)
	resp, err := o.http.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", resp.Status)
	}
	return scrape(resp.Body, name, pool)
}

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

// histogram holds the cumulative buckets of a Prometheus histogram. The key is the upper bound of a bucket in seconds, and the value is the
// number of observations up to it.
type histogram map[float64]float64

// parseHistogram reads the histogram metricName of one pool from metricsPage, a page of metrics. It adds up the series that differ only in
// other labels.
func parseHistogram(metricsPage io.Reader, metricName, pool string) (histogram, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(metricsPage)
	h := histogram{}
	for _, m := range families[metricName].GetMetric() {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "pool" && l.GetValue() == pool }) {
			continue
		}
		for _, b := range m.GetHistogram().GetBucket() {
			h[b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	return h, err
}

// observedSince returns the histogram of the values that were observed after the histogram `earlier` was read.
func (h histogram) observedSince(earlier histogram) histogram {
	d := histogram{}
	for bound, count := range h {
		d[bound] = count - earlier[bound]
	}
	return d
}

// quantile returns the value below which the given fraction of the observations lies. It interpolates within a bucket as
// Prometheus does. For the last bucket, it returns the lower bound. Without observations, it returns 0.
func (h histogram) quantile(fraction float64) time.Duration {
	if h[math.Inf(1)] <= 0 {
		return 0
	}
	rank := fraction * h[math.Inf(1)]
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

// fetchHandoffHistogram returns the handoff durations that all replicas measured. It is empty if the metrics are served at another address.
func (o *Operator) fetchHandoffHistogram(ctx context.Context, pool string) histogram {
	sum := histogram{}
	for _, base := range o.replicas.urls {
		replicaHandoffs, err := o.fetchHistogram(ctx, base, "dispatcher_handoff_duration_seconds", pool)
		if err != nil {
			continue
		}
		for bound, count := range replicaHandoffs {
			sum[bound] += count
		}
	}
	return sum
}

func (o *Operator) fetchHistogram(ctx context.Context, baseURL, metricName, pool string) (histogram, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, baseURL+"/metrics", nil)
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
	return parseHistogram(resp.Body, metricName, pool)
}

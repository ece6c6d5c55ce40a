package simulator

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// histogram is the cumulative buckets of a metric: how many values were at most so many seconds.
type histogram map[float64]float64

// scrape reads a histogram of one pool from a page of metrics, and adds it up
// over the other labels.
func scrape(page io.Reader, name, pool string) histogram {
	h := histogram{}
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		labels, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), name+"_bucket{"), "} ")
		if !ok || !strings.HasPrefix(lines.Text(), name) || !strings.Contains(labels, `pool=`+strconv.Quote(pool)) {
			continue
		}
		_, le, _ := strings.Cut(labels, `le="`)
		le, _, _ = strings.Cut(le, `"`)
		bound, err := strconv.ParseFloat(le, 64)
		count, err2 := strconv.ParseFloat(value, 64)
		if err == nil && err2 == nil {
			h[bound] += count
		}
	}
	return h
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
	bounds := make([]float64, 0, len(h))
	for bound := range h {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	rank := q * h[math.Inf(1)]
	low, below := 0.0, 0.0
	for _, bound := range bounds {
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
		page, err := o.metrics(ctx, base)
		if err != nil {
			continue
		}
		for bound, count := range scrape(strings.NewReader(page), "dispatcher_handoff_duration_seconds", pool) {
			sum[bound] += count
		}
	}
	return sum
}

func (o *Operator) metrics(ctx context.Context, base string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/metrics", nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+o.token)
	resp, err := o.http.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("metrics: %s", resp.Status)
	}
	page, err := io.ReadAll(resp.Body)
	return string(page), err
}

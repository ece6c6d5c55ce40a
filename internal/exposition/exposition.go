// Package exposition serves metrics in the text format of Prometheus. Unlike the handler of the library, it serves the same text to all
// scrapes within a short time, and compresses for speed and not for size.
package exposition

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/fleetslots/dispatcher/internal/reading"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// gatherTimeout is the time limit of one read of the metrics. Each source has a shorter limit of its own.
const gatherTimeout = 10 * time.Second

// Sources is a list of gatherers of metrics. No two of them may have a metric of the same name. Sources does not check this.
// prometheus.Gatherers does, but it compares and sorts all metrics at each scrape.
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

// Handler serves metrics as an HTTP endpoint. All requests get the same text until the text is as old as maxAge, because
// gathering, writing and compressing the metrics of thousands of pools takes up to 0.1 s of CPU time. If one source
// fails, the answer is an error without metrics. If a source panics, panicked is called with the panic.
func Handler(metrics prometheus.Gatherer, maxAge time.Duration, panicked rescue.PanicHandler) http.HandlerFunc {
	texts := reading.New(maxAge, gatherTimeout, time.Now, func(context.Context) (*expositionText, error) { return gatherText(metrics) })
	return func(rw http.ResponseWriter, r *http.Request) {
		current, err := texts.Read(r.Context())
		if panicked.Report("gathering metrics", err) != nil {
			http.Error(rw, "metrics not gathered: "+err.Error(), http.StatusInternalServerError)
			return
		}
		body := current.plain
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			rw.Header().Set("Content-Encoding", "gzip")
			body = current.compressed()
		}
		rw.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		rw.Header().Set("Vary", "Accept-Encoding")
		rw.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = rw.Write(body) // an error means that the client has disconnected
	}
}

type expositionText struct {
	plain      []byte
	compressed func() []byte // compresses plain at its first call
}

func gatherText(metrics prometheus.Gatherer) (*expositionText, error) {
	families, err := metrics.Gather()
	if err != nil {
		return nil, err //nolint:wrapcheck // the error names the metric
	}
	var plain bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&plain, family); err != nil {
			return nil, fmt.Errorf("writing %s: %w", family.GetName(), err)
		}
	}
	return &expositionText{plain.Bytes(), sync.OnceValue(func() []byte { return gzipText(plain.Bytes()) })}, nil
}

func gzipText(plain []byte) []byte {
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // the level is valid, and a write to a bytes.Buffer cannot fail
	_, _ = w.Write(plain)
	_ = w.Close()
	return packed.Bytes()
}

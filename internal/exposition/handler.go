package exposition

import (
	"bytes"
	"compress/gzip"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/fleetslots/dispatcher/internal/reading"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// gatherTimeout is the time limit of one read of the metrics. The sources have shorter limits of their own.
const gatherTimeout = 10 * time.Second

// Handler serves metrics as an HTTP endpoint. All requests get the same text until it is as old as maxAge, because gathering, writing and
// compressing the metrics of thousands of pools takes up to a tenth of a second of CPU. If one source fails, the answer is an error without
// any metrics. If the failure is a panic, it is reported to panicked.
func Handler(metrics prometheus.Gatherer, maxAge time.Duration, panicked rescue.PanicHandler) http.HandlerFunc {
	texts := reading.New(maxAge, gatherTimeout, time.Now, func(context.Context) (*text, error) { return newText(metrics) })
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

// text is the text of all metrics at one time.
type text struct {
	plain      []byte
	compressed func() []byte // compresses plain at its first call
}

// newText gathers metrics and returns their text.
func newText(metrics prometheus.Gatherer) (*text, error) {
	families, err := metrics.Gather()
	if err != nil {
		return nil, err //nolint:wrapcheck // the error names the metric
	}
	var plain bytes.Buffer
	if err := Write(&plain, families); err != nil {
		return nil, err
	}
	return &text{plain.Bytes(), sync.OnceValue(func() []byte { return compress(plain.Bytes()) })}, nil
}

// compress returns plain in the format of gzip.
func compress(plain []byte) []byte {
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // the level is valid, and a write to a bytes.Buffer cannot fail
	_, _ = w.Write(plain)
	_ = w.Close()
	return packed.Bytes()
}

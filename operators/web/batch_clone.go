package web

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	cloneAll    = "all"
	cloneFailed = "failed"

	clonePageSize = 1000 // tasks that are read in one request
)

// cloneFormValues returns the form inputs for a new batch with the work and the settings of b. It leaves out
// times that have passed.
func cloneFormValues(b operators.Batch, now time.Time) url.Values {
	f := url.Values{
		"from": {strconv.FormatInt(b.ID, 10)}, "name": {b.Name}, "pool": {b.Pool}, "kind": {b.Kind}, "payload": {indentJSON(b.Payload)}, "same": {cloneAll},
		"attempts": {strconv.Itoa(b.MaxAttempts)}, "backoff": {durationInput(b.RetryBackoffMS)}, "lease": {durationInput(b.LeaseMS)}, "max_run": {durationInput(b.MaxRunMS)}, "max_wait": {durationInput(b.MaxWaitMS)},
		"weight": {strconv.Itoa(b.Weight)}, "priority": {strconv.Itoa(b.Priority)}, "windows": {windowLines(b.Windows)}, "lane": {laneInput(b.Lane)},
	}
	for _, row := range filledRows(policyRows(b.Limits)) {
		row.addToForm(f)
	}
	if b.RetryBackoffMS == 0 {
		f.Set("backoff", "0s") // an empty input would mean the default
	}
	if len(b.RetryOn) == 1 {
		f.Set("retry_on", b.RetryOn[0])
	}
	if b.OnLost == "fail" {
		f.Set("on_lost", b.OnLost)
	}
	if b.FinishInside {
		f.Set("finish_inside", "true")
	}
	for name, at := range map[string]*operators.Time{"not_before": b.NotBefore, "not_after": b.NotAfter} {
		if at != nil && at.After(now) {
			f.Set(name, dateInput(at))
		}
	}
	if b.Abort != nil {
		f.Set("abort_failure", strconv.FormatFloat(100*b.Abort.Failure, 'g', 12, 64))
		f.Set("abort_min", strconv.FormatInt(b.Abort.Min, 10))
	}
	return f
}

// readSource returns the batch that the form is cloned from. It returns nil if from is empty.
func (b *batchForms) readSource(r *http.Request, from string) (*operators.Batch, error) {
	if from == "" {
		return nil, nil //nolint:nilnil // there is none, and nothing went wrong
	}
	id, err := strconv.ParseInt(from, 10, 64)
	if err != nil {
		return nil, newFormError("from: not the number of a batch.")
	}
	batch, err := b.api.Batches.Get(r.Context(), id)
	return &batch, err
}

// cloneReader reads the tasks of another batch as lines of NDJSON for a new batch: the tasks of all its
// devices, or of the devices that failed. It reads the tasks page by page, while the lines are sent.
type cloneReader struct {
	api       client
	r         *http.Request
	source    operators.Batch
	now       time.Time
	states    []string // states whose tasks are still to be read; an empty string means all states
	pageToken string
	lines     bytes.Buffer
}

func (b *batchForms) openClone(r *http.Request, source operators.Batch, selection string) (io.ReadCloser, error) {
	states := []string{""}
	if selection == cloneFailed {
		states = []string{operators.Failed, operators.TimedOut}
	}
	return io.NopCloser(&cloneReader{api: b.api, r: r, source: source, states: states, now: b.now()}), nil
}

// Read returns the next lines.
func (s *cloneReader) Read(to []byte) (int, error) {
	for s.lines.Len() == 0 {
		if len(s.states) == 0 {
			return 0, io.EOF
		}
		if err := s.readPage(); err != nil {
			return 0, err
		}
	}
	return s.lines.Read(to)
}

func (s *cloneReader) readPage() error {
	query := operators.Query("batch", strconv.FormatInt(s.source.ID, 10), "state", s.states[0], "page_size", strconv.Itoa(clonePageSize), "page_token", s.pageToken)
	var list operators.TaskList
	if err := s.api.get(s.r, operators.Path("tasks"), query, &list); err != nil {
		return err
	}
	lines := json.NewEncoder(&s.lines)
	lines.SetEscapeHTML(false)
	for _, t := range list.Tasks {
		line := s.source.CloneTask(t, s.now)
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	if s.pageToken = list.NextPageToken; s.pageToken == "" {
		s.states = s.states[1:]
	}
	return nil
}

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

// cloneFormValues returns the form inputs for a new batch with the kind, the payload and the settings of source. It keeps only times
// after now.
func cloneFormValues(source operators.Batch, now time.Time) url.Values {
	f := batchFormValues(source.CloneSettings(now))
	f.Set("from", strconv.FormatInt(source.ID, 10))
	f.Set("same", cloneAll)
	setPolicyRows(f, policyRows(source.Limits))
	if source.Abort != nil {
		f.Set("abort_failure", strconv.FormatFloat(100*source.Abort.Failure, 'g', 12, 64))
		f.Set("abort_min", strconv.FormatInt(source.Abort.Min, 10))
	}
	return f
}

// readSource reads the batch batchID, whose settings and tasks the form copies. It returns nil if batchID is empty.
func (b *batchForms) readSource(r *http.Request, batchID string) (*operators.Batch, error) {
	if batchID == "" {
		return nil, nil //nolint:nilnil // nil means that the form copies no batch
	}
	id, err := strconv.ParseInt(batchID, 10, 64)
	if err != nil {
		return nil, newFormError("from: not the number of a batch.")
	}
	batch, err := b.api.Batches.Get(r.Context(), id)
	return &batch, err
}

// clonedTaskReader reads the tasks of another batch as lines of NDJSON for a new batch: the tasks of all its
// devices, or of the devices that failed. It reads the tasks page by page, while the lines are sent.
type clonedTaskReader struct {
	api       client
	r         *http.Request
	source    operators.Batch
	now       time.Time
	states    []string // states whose tasks are still to be read; an empty string means all states
	pageToken string
	lines     bytes.Buffer
}

// openClonedTasks returns a reader of tasks of source as lines of NDJSON. selection says which tasks: those of all devices, or of the devices
// that failed.
func (b *batchForms) openClonedTasks(r *http.Request, source operators.Batch, selection string) (io.ReadCloser, error) {
	states := []string{""}
	if selection == cloneFailed {
		states = []string{operators.Failed, operators.TimedOut}
	}
	return io.NopCloser(&clonedTaskReader{api: b.api, r: r, source: source, states: states, now: b.now()}), nil
}

// Read copies the next bytes of the lines of the cloned tasks into buffer and returns their number.
func (s *clonedTaskReader) Read(buffer []byte) (int, error) {
	for s.lines.Len() == 0 {
		if len(s.states) == 0 {
			return 0, io.EOF
		}
		if err := s.readPage(); err != nil {
			return 0, err
		}
	}
	return s.lines.Read(buffer)
}

// readPage reads the next page of tasks and adds their lines to lines.
func (s *clonedTaskReader) readPage() error {
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

package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// batchForm is the input as it was entered, and the result of counting its tasks.
type batchForm struct {
	Name, Pool, Kind, Payload            string
	Devices, Tags, Tasks                 string // one of them
	NotBefore, NotAfter, Windows, Inside string
	Attempts, OnLost, Lease, MaxRun      string
	Weight, Priority                     string
	AbortFailure, AbortMin               string
	Limits, Duplicates, Unknown          string
	Key                                  string // Idempotency-Key: sending the form twice creates one batch

	Pools    []operators.PoolState // to choose from; some
	Operator bool
	Counted  *int64 // tasks that it would create
	Skipped  int64  // of those that were entered
	Problem  string
}

// fields are the inputs of the form by name.
func (f *batchForm) fields() map[string]*string {
	return map[string]*string{
		"name": &f.Name, "pool": &f.Pool, "kind": &f.Kind, "payload": &f.Payload, "devices": &f.Devices, "tags": &f.Tags, "tasks": &f.Tasks,
		"not_before": &f.NotBefore, "not_after": &f.NotAfter, "windows": &f.Windows, "finish_inside": &f.Inside,
		"attempts": &f.Attempts, "on_lost": &f.OnLost, "lease": &f.Lease, "max_run": &f.MaxRun, "weight": &f.Weight, "priority": &f.Priority,
		"abort_failure": &f.AbortFailure, "abort_min": &f.AbortMin, "limits": &f.Limits, "duplicates": &f.Duplicates, "unknown_devices": &f.Unknown, "key": &f.Key,
	}
}

// Timed says that the form limits when tasks may start.
func (f batchForm) Timed() bool {
	return f.NotBefore+f.NotAfter+strings.TrimSpace(f.Windows) != "" || f.Inside == ""
}

// Tuned says that a field differs from its default.
func (f batchForm) Tuned() bool {
	return f.OnLost+f.Lease+f.MaxRun != "" || f.Attempts != "3" || f.Weight != "1" || f.Priority != "0"
}

func (w *Web) newBatchPage(r *http.Request) (page, error) {
	f := batchForm{Pool: r.URL.Query().Get("pool"), Attempts: "3", Weight: "1", Priority: "0", Inside: "true", Key: newKey()}
	err := w.completeForm(r, &f)
	return batchFormPage(f), err
}

// completeForm adds the parts of the form that are not entered.
func (w *Web) completeForm(r *http.Request, f *batchForm) error {
	f.Operator = w.may(r, "operator")
	var list operators.PoolList
	err := w.get(r, operators.Path("pools"), url.Values{"page_size": {"100"}}, &list)
	f.Pools = list.Pools
	return err
}

func batchFormPage(f batchForm) page {
	return page{title: "New batch", section: "batches", template: "batch-new", data: f}
}

// createBatch counts or creates. A refused form comes back as it was entered.
func (w *Web) createBatch(rw http.ResponseWriter, r *http.Request) {
	var f batchForm
	made, err := w.submit(r, &f)
	if err == nil && !f.counts(r) {
		http.Redirect(rw, r, w.url(fmt.Sprintf("/batches/%d?done=created", made.ID)), http.StatusSeeOther)
		return
	}
	status := http.StatusOK
	if err != nil {
		status = http.StatusServiceUnavailable
		if p, ok := errors.AsType[*operators.Problem](err); ok {
			status = p.Status
		}
		f.Problem = plainError(err)
	} else {
		f.Counted = &made.Tasks
		if made.Skipped != nil {
			f.Skipped = *made.Skipped
		}
	}
	if err := w.completeForm(r, &f); err != nil {
		w.fail(rw, r, err)
		return
	}
	sheet, err := w.sheets.render(batchFormPage(f))
	if err != nil {
		w.fail(rw, r, err)
		return
	}
	w.send(rw, r, status, "batches", sheet)
}

func (*batchForm) counts(r *http.Request) bool { return r.PostFormValue("do") == "count" }

// submit reads the form, and creates the batch or counts its tasks.
func (w *Web) submit(r *http.Request, f *batchForm) (made operators.BatchCreated, err error) {
	if err := f.read(r); err != nil {
		return made, err
	}
	if !w.may(r, "operator") {
		return made, w.forbidden(r, "operator")
	}
	what, err := f.request()
	if err != nil {
		return made, err
	}
	what.Method, what.Path, what.Key = http.MethodPost, operators.Path("batches"), f.Key
	if f.counts(r) {
		what.Query.Set("dry_run", "true")
		what.Key = ""
	}
	err = w.client.Do(r.Context(), what, &made)
	return made, err
}

// read takes the input. The text of a file goes where its text can also
// be pasted: a browser does not send a file again that was refused.
func (f *batchForm) read(r *http.Request) error {
	if err := r.ParseMultipartForm(maxForm); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return &operators.Problem{Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("The form is larger than %d MiB. The command line takes any size: dispatcher batches create -f FILE", maxForm>>20)}
		}
		return badForm("The form could not be read: " + err.Error())
	}
	for name, field := range f.fields() {
		*field = r.PostFormValue(name)
	}
	file, _, err := r.FormFile("file")
	if errors.Is(err, http.ErrMissingFile) || errors.Is(err, http.ErrNotMultipart) {
		return nil
	}
	if err != nil {
		return badForm("The file could not be read: " + err.Error())
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil || len(text) == 0 {
		return err
	}
	if strings.TrimSpace(f.Tasks) != "" {
		return badForm("Tasks: a file or text, not both.")
	}
	f.Tasks = string(text)
	return nil
}

// request is the form as a request of the API.
func (f *batchForm) request() (operators.Request, error) {
	body, err := f.body()
	if err != nil {
		return operators.Request{}, err
	}
	what := operators.Request{Query: url.Values{}}
	if f.Unknown != "" {
		what.Query.Set("unknown_devices", f.Unknown)
	}
	text := strings.TrimPrefix(f.Tasks, "\ufeff")
	switch trimmed := strings.TrimSpace(text); {
	case trimmed == "":
		what.Body = body
		return what, f.choose(body)
	case strings.TrimSpace(f.Devices+f.Tags) != "":
		return what, badForm("Devices, tags, tasks: one of them.")
	case trimmed[0] == '[':
		if !json.Valid([]byte(trimmed)) {
			return what, badForm("Tasks: no JSON list.")
		}
		body["tasks"], what.Body = json.RawMessage(trimmed), body
		return what, nil
	case trimmed[0] == '{':
		what.Content = operators.TypeNDJSON
	default:
		what.Content = operators.TypeCSV
	}
	what.Open = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
	return what, operators.InQuery(body, what.Query)
}

// choose adds the devices by name or by tags.
func (f *batchForm) choose(body map[string]any) error {
	if list := strings.FieldsFunc(f.Devices, func(c rune) bool { return strings.ContainsRune(" \t\r\n,;", c) }); len(list) > 0 {
		body["devices"] = list
	}
	tags := map[string]string{}
	for pair := range strings.FieldsSeq(strings.ReplaceAll(f.Tags, ",", " ")) {
		name, value, ok := strings.Cut(pair, ":")
		if !ok {
			return badForm("Tags: name:value, with spaces between.")
		}
		tags[name] = value
	}
	if len(tags) > 0 {
		body["select"] = operators.Selection{Tags: tags}
	}
	return nil
}

// body has the fields of the batch that were filled in.
func (f *batchForm) body() (map[string]any, error) {
	body := map[string]any{"pool": strings.TrimSpace(f.Pool)}
	for field, text := range map[string]string{"name": f.Name, "kind": f.Kind, "on_lost": f.OnLost, "duplicates": f.Duplicates} {
		if text != "" {
			body[field] = text
		}
	}
	if f.Inside == "" {
		body["finish_inside"] = false
	}
	for _, entry := range []struct {
		field, name, text string
		read              func(string) (any, error)
	}{
		{"max_attempts", "Attempts", f.Attempts, whole},
		{"weight", "Weight", f.Weight, whole},
		{"priority", "Priority", f.Priority, whole},
		{"lease_ms", "Lease", f.Lease, inMS},
		{"max_run_ms", "Longest run", f.MaxRun, inMS},
		{"not_before", "Not before", f.NotBefore, utc},
		{"not_after", "Not after", f.NotAfter, utc},
		{"payload", "Payload", f.Payload, object},
		{"limits", "Limits", f.Limits, object},
		{"windows", "Windows", f.Windows, openings},
	} {
		if text := strings.TrimSpace(entry.text); text != "" {
			value, err := entry.read(text)
			if err != nil {
				return nil, badForm(entry.name + ": " + err.Error())
			}
			body[entry.field] = value
		}
	}
	return body, f.abort(body)
}

func (f *batchForm) abort(body map[string]any) error {
	share, least := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(f.AbortFailure), "%")), strings.TrimSpace(f.AbortMin)
	if share == "" && least == "" {
		return nil
	}
	percent, err := strconv.ParseFloat(share, 64)
	if err != nil || percent <= 0 || percent > 100 {
		return badForm("Pause when failing: a percentage above 0, up to 100.")
	}
	rule := map[string]any{"failure": percent / 100}
	if least != "" {
		if rule["min"], err = whole(least); err != nil {
			return badForm("After at least: " + err.Error())
		}
	}
	body["abort"] = rule
	return nil
}

func whole(text string) (any, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return nil, errors.New("a whole number")
	}
	return n, nil
}

func inMS(text string) (any, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, errors.New("a duration such as 300s or 5m")
	}
	return d.Milliseconds(), nil
}

// utc reads what browsers send of a date and time, or a time with its zone.
func utc(text string) (any, error) {
	for _, form := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.Parse(form, text); err == nil {
			return t.UTC().Format(time.RFC3339), nil
		}
	}
	return nil, errors.New("a time such as 2026-03-01T04:05, in UTC")
}

func object(text string) (any, error) {
	if !json.Valid([]byte(text)) {
		return nil, errors.New("not JSON")
	}
	return json.RawMessage(text), nil
}

// openings reads a window from each line: five fields of cron, a duration, and
// perhaps a time zone.
func openings(text string) (any, error) {
	var list []operators.Window
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 6 || len(fields) > 7 {
			return nil, errors.New("a line has five fields of cron, a duration and perhaps a time zone: 0 1 * * * 4h Asia/Shanghai")
		}
		one := operators.Window{Cron: strings.Join(fields[:5], " "), Duration: fields[5]}
		if len(fields) == 7 {
			one.Timezone = fields[6]
		}
		list = append(list, one)
	}
	return list, nil
}

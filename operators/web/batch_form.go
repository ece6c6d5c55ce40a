package web

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

// batchForms serves the forms that create batches.
type batchForms struct {
	*site

	api client
}

func (b *batchForms) registerRoutes(target *site) {
	target.addPage("/new-batch", b.loadNewBatchPage)
	target.pages.HandleFunc("POST /new-batch", b.createBatch)
}

// batchForm has the input of the form for a new batch, and the number of tasks that the batch would have.
type batchForm struct {
	url.Values

	Pools    []operators.PoolState   // pools to choose from; not all if there are many
	Operator bool                    // the visitor may create batches
	Source   *operators.Batch        // batch that the form is cloned from, or nil
	Counted  *operators.BatchCreated // the result of counting the tasks; nil if they were not counted
}

// trimmedInput returns an input without surrounding white space.
func (f *batchForm) trimmedInput(name string) string { return strings.TrimSpace(f.Get(name)) }

// HasTimeLimits reports whether the form limits when tasks may start.
func (f *batchForm) HasTimeLimits() bool {
	return f.Get("not_before")+f.Get("not_after")+f.Get("max_wait")+f.trimmedInput("windows") != "" || f.Get("finish_inside") == ""
}

// HasTuning reports whether one of the inputs for fine tuning differs from its default.
func (f *batchForm) HasTuning() bool {
	byDefault := defaultBatchFormValues()
	return slices.ContainsFunc([]string{"attempts", "weight", "priority", "backoff", "retry_on", "on_lost", "lane", "lease", "max_run"}, func(input string) bool {
		return f.Get(input) != byDefault.Get(input)
	})
}

// batchFormValues returns the inputs of the form for a new batch with the settings of batch.
func batchFormValues(batch operators.NewBatch) url.Values {
	values := batchCreationFields().textsOfInputs(batch)
	values.Set("finish_inside", pointerInputText(batch.FinishInside, checkboxValue))
	return values
}

// defaultBatchFormValues returns the form inputs that the form shows at first.
func defaultBatchFormValues() url.Values {
	return batchFormValues(operators.NewBatch{}.WithDefaults())
}

// Rows returns the entered policies, followed by empty rows.
func (f *batchForm) Rows() []policyRow { return appendEmptyRows(filledRows(enteredRows(f.Values))) }

// HasLimits reports whether the batch has its own limits or an abort rule.
func (f *batchForm) HasLimits() bool {
	return f.Get("abort_failure")+f.Get("abort_min") != "" || len(filledRows(enteredRows(f.Values))) > 0
}

func (b *batchForms) loadNewBatchPage(r *http.Request) (page, error) {
	f := &batchForm{Values: defaultBatchFormValues()}
	f.Set("pool", r.URL.Query().Get("pool"))
	f.Set("from", r.URL.Query().Get("from"))
	again := formInputOf(r)
	if again != nil {
		f.Values = again.values
	}
	var err error
	if f.Source, err = b.readSource(r, f.Get("from")); err != nil {
		return page{}, err
	}
	if again == nil {
		if f.Source != nil {
			f.Values = cloneFormValues(*f.Source, b.now())
		}
		f.Set("key", rand.Text()) // Idempotency-Key: sending the form twice creates one batch
	}
	return b.newFormPage(r, f)
}

// newFormPage returns the page that shows form. It adds the visitor's role and the pools to choose from.
func (b *batchForms) newFormPage(r *http.Request, form *batchForm) (page, error) {
	form.Operator = b.mayOfferActions(r, "operator")
	var list operators.PoolList
	err := b.api.get(r, operators.Path("pools"), url.Values{"page_size": {"100"}}, &list)
	form.Pools = list.Pools
	return page{title: "New batch", section: "batches", template: "batch-new", data: form, keepable: true}, err
}

// createBatch handles the submitted form in the request: it creates the batch, or only counts the tasks that it would have.
func (b *batchForms) createBatch(rw http.ResponseWriter, r *http.Request) {
	f := &batchForm{}
	made, err := b.createOrCountBatch(r, f)
	switch {
	case err != nil:
		b.refuseForm(rw, r, err)
	case f.isCountOnly():
		f.Counted = &made
		p, err := b.newFormPage(r, f)
		b.sendPage(rw, r, http.StatusOK, p, err)
	default:
		http.Redirect(rw, r, b.prefixedPath(fmt.Sprintf("/batches/%d?done=created", made.ID)), http.StatusSeeOther)
	}
}

// isCountOnly reports whether the operator asked only to count the tasks.
func (f *batchForm) isCountOnly() bool { return f.Get("do") == "count" }

// createOrCountBatch reads form from httpRequest, and creates the batch or counts its tasks.
func (b *batchForms) createOrCountBatch(httpRequest *http.Request, form *batchForm) (made operators.BatchCreated, err error) {
	if err := form.parseInput(httpRequest); err != nil {
		return made, err
	}
	if !b.mayOfferActions(httpRequest, "operator") {
		return made, b.refuseVisitor(httpRequest, "operator")
	}
	if form.Source, err = b.readSource(httpRequest, form.Get("from")); err != nil {
		return made, err
	}
	request, err := form.apiRequest()
	if err != nil {
		return made, err
	}
	if form.Source != nil && form.Get("same") != "" {
		request.OpenBody = func() (io.ReadCloser, error) { return b.openClonedTasks(httpRequest, *form.Source, form.Get("same")) }
	}
	request.Method, request.Path, request.Key = http.MethodPost, operators.Path("batches"), form.Get("key")
	if form.isCountOnly() {
		request.Query.Set("dry_run", "true")
		request.Key = ""
	}
	err = b.api.Do(httpRequest.Context(), request, &made)
	return made, err
}

// parseInput parses the submitted input in the request. It stores the text of an uploaded file in the field "tasks", into which text can
// also be pasted, because a browser does not send the file again after the form was refused.
func (f *batchForm) parseInput(r *http.Request) error {
	if err := r.ParseMultipartForm(maxFormBytes); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return &operators.Problem{Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("The form is larger than %d MiB. The command line takes any size: dispatcher batches create -f FILE", maxFormBytes>>20)}
		}
		return newFormError("The form could not be read: " + err.Error())
	}
	f.Values = r.PostForm
	file, header, err := r.FormFile("file")
	if errors.Is(err, http.ErrMissingFile) || errors.Is(err, http.ErrNotMultipart) {
		return nil
	}
	if err != nil {
		return newFormError("The file could not be read: " + err.Error())
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil || len(text) == 0 {
		return err
	}
	if f.trimmedInput("tasks") != "" && f.Get("tasks_of") == "" {
		return newFormError("Tasks: a file or text, not both.")
	}
	f.Set("tasks", string(text)) // replaces the text of the file of an earlier, refused form
	f.Set("tasks_of", header.Filename)
	return nil
}

// apiRequest returns the API request that creates the batch of the form.
func (f *batchForm) apiRequest() (operators.Request, error) {
	body, err := f.bodyFields()
	if err != nil {
		return operators.Request{}, err
	}
	request := operators.Request{Query: nonEmptyParams(f.Values, "unknown_devices")}
	text := strings.TrimPrefix(f.Get("tasks"), "\ufeff")
	switch trimmed := strings.TrimSpace(text); {
	case f.Source != nil && f.Get("same") != "":
		if trimmed+f.trimmedInput("devices")+f.trimmedInput("tags") != "" {
			return request, newFormError("Those of another batch, devices, tags, tasks: one of them.")
		}
		request.ContentType = operators.TypeNDJSON
		return request, operators.AddToQuery(body, request.Query)
	case trimmed == "":
		request.Body = body
		return request, f.addDevices(body)
	case f.trimmedInput("devices")+f.trimmedInput("tags") != "":
		return request, newFormError("Devices, tags, tasks: one of them.")
	case trimmed[0] == '[':
		if !json.Valid([]byte(trimmed)) {
			return request, newFormError("Tasks: no JSON list.")
		}
		body["tasks"], request.Body = json.RawMessage(trimmed), body
		return request, nil
	case trimmed[0] == '{':
		request.ContentType = operators.TypeNDJSON
	default:
		request.ContentType = operators.TypeCSV
	}
	request.OpenBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
	return request, operators.AddToQuery(body, request.Query)
}

// addDevices adds to body the devices of the batch: a list of ids, or tags that select devices.
func (f *batchForm) addDevices(body map[string]any) error {
	if list := strings.FieldsFunc(f.Get("devices"), func(c rune) bool { return strings.ContainsRune(" \t\r\n,;", c) }); len(list) > 0 {
		body["devices"] = list
	}
	tags := map[string]string{}
	for pair := range strings.FieldsSeq(strings.ReplaceAll(f.Get("tags"), ",", " ")) {
		name, value, ok := strings.Cut(pair, ":")
		if !ok {
			return newFormError("Tags: name:value, separated by spaces.")
		}
		tags[name] = value
	}
	if len(tags) > 0 {
		body["select"] = operators.Selection{Tags: tags}
	}
	return nil
}

// bodyFields returns the fields of the batch that were filled in, by their names in the API.
func (f *batchForm) bodyFields() (map[string]any, error) {
	body, err := batchCreationFields().enteredFields(f.Values)
	if err != nil {
		return nil, err
	}
	if f.Get("finish_inside") == "" {
		body["finish_inside"] = false
	}
	policies, err := readPolicies(f.Values)
	if err != nil {
		return nil, err
	}
	if len(policies) > 0 {
		body["limits"] = policies
	}
	return body, f.addAbortRule(body)
}

// addAbortRule adds to body the abort rule of the form, if there is one.
func (f *batchForm) addAbortRule(body map[string]any) error {
	share, minTasks := strings.TrimSpace(strings.TrimSuffix(f.trimmedInput("abort_failure"), "%")), f.trimmedInput("abort_min")
	if share == "" && minTasks == "" {
		return nil
	}
	percent, err := strconv.ParseFloat(share, 64)
	if err != nil || percent <= 0 || percent > 100 {
		return newFormError("Pause when failing: a percentage above 0, up to 100.")
	}
	rule := map[string]any{"failure": percent / 100}
	if minTasks != "" {
		if rule["min"], err = parseInteger(minTasks); err != nil {
			return newFormError("After at least: " + err.Error())
		}
	}
	body["abort"] = rule
	return nil
}

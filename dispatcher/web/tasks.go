package web

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	tasksShown  = 50
	heldCounted = 10_000 // slots held that are counted one by one: of a pool, all
)

func (w *Web) routeTasks() {
	w.livePage("/tasks", w.inOneMoment(w.tasksPage))
	w.livePage("/tasks/{id}", w.inOneMoment(w.taskPage))
	w.page("/tasks/{id}/cancel", w.cancelTaskPage)
	w.page("/cancel-tasks", w.bulkPage("cancel"))
	w.page("/retry-tasks", w.bulkPage("retry"))
	w.act("/tasks/{id}/cancel", "operator", w.taskAction("cancel", "cancelled"))
	w.act("/tasks/{id}/retry", "operator", w.taskAction("retry", "retried"))
	w.act("/cancel-tasks", "operator", w.bulkAction("cancel", "cancelled"))
	w.act("/retry-tasks", "operator", w.bulkAction("retry", "retried"))
}

// taskFilters are the filters of the API that the page offers.
func taskFilters() []string { return []string{"state", "pool", "batch", "device", "kind", "error"} }

// filtersOf takes the filters out of a query; none is empty.
func filtersOf(query url.Values) url.Values {
	f := url.Values{}
	for _, name := range taskFilters() {
		if v := query.Get(name); v != "" {
			f.Set(name, v)
		}
	}
	return f
}

// pill is a state to look at, and how many tasks are in it.
type pill struct {
	State   string // empty: all
	Query   string
	Count   *int64 // nil: unknown, as for filters that nothing is counted by
	About   bool   // to within pointEvery
	Current bool
}

func (w *Web) tasksPage(r *http.Request) (page, error) {
	filters := filtersOf(r.URL.Query())
	query := url.Values{"page_size": {strconv.Itoa(tasksShown)}}
	for name := range filters {
		query.Set(name, filters.Get(name))
	}
	token := r.URL.Query().Get("page")
	if token != "" {
		query.Set("page_token", token)
	}
	var list operators.TaskList
	if err := w.get(r, operators.Path("tasks"), query, &list); err != nil {
		return page{}, err
	}
	counts, err := w.taskCounts(r, filters)
	if err != nil {
		return page{}, err
	}
	next := ""
	if list.NextPageToken != "" {
		onwards := url.Values{"page": {list.NextPageToken}}
		for name := range filters {
			onwards.Set(name, filters.Get(name))
		}
		next = "/tasks?" + onwards.Encode()
	}
	return page{title: "Tasks", section: "tasks", template: "tasks", watch: tasksWatch(filters), data: map[string]any{
		"Tasks": list.Tasks, "Next": next, "First": token == "", "Filters": filters, "Query": filters.Encode(), "Pills": pills(filters, counts),
		"Operator": w.may(r, "operator"), "Filtered": len(filters) > 0,
	}}, nil
}

// tasksWatch selects the events that a filter passes.
func tasksWatch(filters url.Values) watch {
	batch, _ := strconv.ParseInt(filters.Get("batch"), 10, 64)
	switch {
	case filters.Get("device") != "":
		return watch{device: filters.Get("device"), batch: batch}
	case batch != 0:
		return watch{batch: batch}
	case filters.Get("pool") != "":
		return watch{pool: filters.Get("pool")}
	}
	return watch{any: true}
}

// counts are tasks by state; nil: by these filters nothing is counted.
type counts struct {
	of    map[string]int64
	about bool // pending and dispatched are to within pointEvery
}

// taskCounts counts by state where counts are kept: of a batch, a pool or all.
func (w *Web) taskCounts(r *http.Request, filters url.Values) (counts, error) {
	if slices.ContainsFunc([]string{"device", "kind", "error"}, filters.Has) {
		return counts{}, nil
	}
	if filters.Has("batch") {
		if filters.Has("pool") {
			return counts{}, nil
		}
		var b operators.Batch
		err := w.get(r, operators.Path("batches", filters.Get("batch")), nil, &b)
		return counts{of: b.Counts}, err
	}
	found, err := w.options.Ledger.TaskCounts(r.Context(), filters.Get("pool"), heldCounted)
	if err != nil {
		return counts{}, err
	}
	c := counts{of: map[string]int64{}, about: found.More}
	for state, n := range found.ByState {
		c.of[string(state)] = n
	}
	if found.More { // only of all pools together
		more := max(0, int64(w.history.held())-heldCounted)
		c.of[string(store.Dispatched)] += more
		c.of[string(store.Pending)] -= more
	}
	return c, nil
}

func pills(filters url.Values, counts counts) []pill {
	list := make([]pill, 0, 1+len(store.TaskStates()))
	var total int64
	for _, n := range counts.of {
		total += n
	}
	for _, state := range append([]store.TaskState{""}, store.TaskStates()...) {
		q := url.Values{}
		for name := range filters {
			q.Set(name, filters.Get(name))
		}
		q.Del("state")
		if state != "" {
			q.Set("state", string(state))
		}
		p := pill{State: string(state), Query: q.Encode(), Current: filters.Get("state") == string(state)}
		p.About = counts.about && (state == store.Pending || state == store.Dispatched)
		if counts.of != nil {
			n := counts.of[string(state)]
			if state == "" {
				n = total
			}
			p.Count = &n
		}
		list = append(list, p)
	}
	return list
}

// bulkPage shows how many tasks an action would touch, before it does.
func (w *Web) bulkPage(action string) loader {
	return func(r *http.Request) (page, error) {
		filters := filtersOf(r.URL.Query())
		var counted operators.Bulk
		d := map[string]any{"Action": action, "Filters": filters, "Query": filters.Encode(), "Operator": w.may(r, "operator")}
		if w.may(r, "operator") {
			query := url.Values{"dry_run": {"true"}}
			for name := range filters {
				query.Set(name, filters.Get(name))
			}
			if err := w.client.Do(r.Context(), operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", action), Query: query}, &counted); err != nil {
				return page{}, err
			}
		}
		d["Tasks"] = counted.Tasks
		title := map[string]string{"cancel": "Cancel tasks", "retry": "Try tasks again"}[action]
		d["Title"] = title
		return page{title: title, section: "tasks", template: "bulk", data: d}, nil
	}
}

// bulkRounds bounds one press of the button: each round changes up to 20,000.
const bulkRounds = 50

func (w *Web) bulkAction(action, said string) func(r *http.Request) (string, string, error) {
	return func(r *http.Request) (string, string, error) {
		filters := filtersOf(r.PostForm)
		for range bulkRounds {
			var done operators.Bulk
			err := w.client.Do(r.Context(), operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", action), Query: filters}, &done)
			if err != nil {
				return "", "", err
			}
			if !done.More {
				break
			}
		}
		filters.Del("state")
		return "/tasks?" + filters.Encode(), said, nil
	}
}

// step is a state of a task on its way.
type step struct {
	State string
	Past  bool
	Here  bool
}

// pathOf is the states of a task so far, and the possible next ones.
func pathOf(t operators.TaskDetail) []step {
	tried := len(t.Attempts) > 0 || t.Grant != nil
	path := []step{{State: operators.Pending, Past: true}, {State: operators.Dispatched, Past: tried}}
	switch t.State {
	case operators.Pending:
		path[0].Here = true
	case operators.Dispatched:
		path[1].Here = true
	default:
		if !tried {
			path = path[:1]
		}
		return append(path, step{State: t.State, Past: true, Here: true})
	}
	return append(path, step{State: operators.Succeeded})
}

func (w *Web) taskPage(r *http.Request) (page, error) {
	id := r.PathValue("id")
	var t operators.TaskDetail
	if err := w.get(r, operators.Path("tasks", id), nil, &t); err != nil {
		return page{}, err
	}
	var why operators.Why
	if err := w.get(r, operators.Path("tasks", id, "why"), nil, &why); err != nil {
		return page{}, err
	}
	var events operators.EventList
	if err := w.get(r, operators.Path("events"), url.Values{"task": {id}, "page_size": {"20"}}, &events); err != nil {
		return page{}, err
	}
	waits := t.Open()
	return page{title: "Task " + id, section: "tasks", template: "task", watch: watch{task: t.ID, device: t.Device, pool: poolIf(waits, t.Pool)}, data: map[string]any{
		"Task": t, "Why": why, "Path": pathOf(t), "Events": events.Events, "Operator": w.may(r, "operator"), "Admin": w.may(r, "admin"), "Waits": waits,
		"Retriable": !waits && t.State != operators.Succeeded,
	}}, nil
}

func (w *Web) cancelTaskPage(r *http.Request) (page, error) {
	var t operators.TaskDetail
	err := w.get(r, operators.Path("tasks", r.PathValue("id")), nil, &t)
	return page{title: "Cancel task", section: "tasks", template: "task-cancel", data: map[string]any{"Task": t, "Operator": w.may(r, "operator")}}, err
}

func (w *Web) taskAction(action, said string) func(r *http.Request) (string, string, error) {
	return func(r *http.Request) (string, string, error) {
		id := r.PathValue("id")
		if _, err := strconv.ParseInt(id, 10, 64); err != nil {
			return "", "", &operators.Problem{Status: http.StatusNotFound, Detail: "There is no such task."}
		}
		return "/tasks/" + id, said, w.post(r.Context(), operators.Path("tasks", id, action), nil)
	}
}

// poolIf: the reasons why a task waits change with its pool.
func poolIf(waits bool, pool string) string {
	if waits {
		return pool
	}
	return ""
}

package web

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	tasksShown  = 50
	heldCounted = 10_000 // maximum number of held slots that are counted exactly; enough for all slots of one pool
)

// taskPages show, cancel and retry tasks.
type taskPages struct {
	*frame

	api     client
	ledger  pageData
	history *history
}

func (t *taskPages) route(to *site) {
	to.live("/tasks", t.list)
	to.live("/tasks/{id}", t.show)
	to.page("/tasks/{id}/cancel", t.cancelling)
	to.page("/cancel-tasks", t.counting("cancel", "Cancel tasks"))
	to.page("/retry-tasks", t.counting("retry", "Try tasks again"))
	to.act("/tasks/{id}/cancel", "operator", t.api.command("tasks", "cancel", "cancelled"))
	to.act("/tasks/{id}/retry", "operator", t.api.command("tasks", "retry", "retried"))
	to.act("/cancel-tasks", "operator", t.bulk("cancel", "cancelled"))
	to.act("/retry-tasks", "operator", t.bulk("retry", "retried"))
}

// taskFilters returns the API filters that the page offers.
func taskFilters(query url.Values) url.Values {
	return filtersOf(query, "state", "pool", "batch", "device", "kind", "error")
}

// pill is a link that filters by a state, with the number of tasks in this state.
type pill struct {
	State   string // empty means all states
	Query   string
	Count   *int64 // nil if unknown, because no counts are stored for the filters
	About   bool   // Count may be up to pointEvery old
	Current bool
}

func (t *taskPages) list(r *http.Request) (page, error) {
	filters := taskFilters(r.URL.Query())
	pager := pagerOf(r, filters)
	var list operators.TaskList
	if err := t.api.get(r, operators.Path("tasks"), pager.query(tasksShown), &list); err != nil {
		return page{}, err
	}
	counts, err := t.count(r, filters)
	if err != nil {
		return page{}, err
	}
	return page{title: "Tasks", section: "tasks", template: "tasks", watch: tasksWatch(filters), data: map[string]any{
		"Tasks": list.Tasks, "Next": pager.next(list.NextPageToken), "First": pager.first(), "Filters": filters, "Query": filters.Encode(),
		"Pills": pills(filters, counts), "Operator": t.may(r, "operator"), "Filtered": len(filters) > 0,
	}}, nil
}

// tasksWatch returns the watch for the events that may concern the tasks of a filter.
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

// counts holds the number of tasks per state. The map is nil if no counts are stored for the filters.
type counts struct {
	of    map[string]int64
	about bool // the counts of pending and dispatched may be up to pointEvery old
}

// count returns the number of tasks per state. It works only for filters with stored counts: one batch,
// one pool, or no filter.
func (t *taskPages) count(r *http.Request, filters url.Values) (counts, error) {
	if slices.ContainsFunc([]string{"device", "kind", "error"}, filters.Has) {
		return counts{}, nil
	}
	if filters.Has("batch") {
		if filters.Has("pool") {
			return counts{}, nil
		}
		var b operators.Batch
		err := t.api.get(r, operators.Path("batches", filters.Get("batch")), nil, &b)
		return counts{of: b.Counts}, err
	}
	found, err := t.ledger.TaskCounts(r.Context(), filters.Get("pool"), heldCounted)
	if err != nil {
		return counts{}, err
	}
	c := counts{of: map[string]int64{}, about: found.More}
	for state, n := range found.ByState {
		c.of[string(state)] = n
	}
	if found.More { // possible only without a filter by pool
		more := max(0, int64(t.history.held())-heldCounted)
		c.of[operators.Dispatched] += more
		c.of[operators.Pending] -= more
	}
	return c, nil
}

func pills(filters url.Values, counts counts) []pill {
	list := make([]pill, 0, 1+len(operators.TaskStates()))
	var total int64
	for _, n := range counts.of {
		total += n
	}
	for _, state := range append([]string{""}, operators.TaskStates()...) {
		q := maps.Clone(filters)
		q.Del("state")
		if state != "" {
			q.Set("state", state)
		}
		p := pill{State: state, Query: q.Encode(), Current: filters.Get("state") == state}
		p.About = counts.about && (state == operators.Pending || state == operators.Dispatched)
		if counts.of != nil {
			n := counts.of[state]
			if state == "" {
				n = total
			}
			p.Count = &n
		}
		list = append(list, p)
	}
	return list
}

// counting returns the loader of a page that shows how many tasks an action would change.
func (t *taskPages) counting(action, title string) loader {
	return func(r *http.Request) (page, error) {
		filters := taskFilters(r.URL.Query())
		var counted operators.Bulk
		if t.may(r, "operator") {
			query := maps.Clone(filters)
			query.Set("dry_run", "true")
			if err := t.api.Do(r.Context(), operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", action), Query: query}, &counted); err != nil {
				return page{}, err
			}
		}
		return page{title: title, section: "tasks", template: "bulk", data: map[string]any{
			"Action": action, "Title": title, "Filters": filters, "Query": filters.Encode(), "Operator": t.may(r, "operator"), "Tasks": counted.Tasks,
		}}, nil
	}
}

// bulkRounds is the maximum number of rounds of one submitted form. Each round changes up to 20,000
// tasks.
const bulkRounds = 50

func (t *taskPages) bulk(action, said string) change {
	return func(r *http.Request) (string, string, error) {
		filters := taskFilters(r.PostForm)
		for range bulkRounds {
			var done operators.Bulk
			err := t.api.Do(r.Context(), operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", action), Query: filters}, &done)
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

// step is one state in the life of a task.
type step struct {
	State string
	Past  bool
	Here  bool
}

// pathOf returns the states of a task so far. If it is open, the expected next states follow.
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

func (t *taskPages) show(r *http.Request) (page, error) {
	id := r.PathValue("id")
	var task operators.TaskDetail
	if err := t.api.get(r, operators.Path("tasks", id), nil, &task); err != nil {
		return page{}, err
	}
	var why operators.Why
	if err := t.api.get(r, operators.Path("tasks", id, "why"), nil, &why); err != nil {
		return page{}, err
	}
	var events operators.EventList
	if err := t.api.get(r, operators.Path("events"), url.Values{"task": {id}, "page_size": {"20"}}, &events); err != nil {
		return page{}, err
	}
	concern := watch{task: task.ID, device: task.Device}
	if task.Open() {
		concern.pool = task.Pool // the reasons why it waits depend on its pool
	}
	return page{title: "Task " + id, section: "tasks", template: "task", watch: concern, data: map[string]any{
		"Task": task, "Why": why, "Path": pathOf(task), "Events": events.Events, "More": events.NextPageToken != "", "Operator": t.may(r, "operator"), "Admin": t.may(r, "admin"),
		"Remedies": t.remedies(r), "Waits": task.Open(), "Retriable": !task.Open() && task.State != operators.Succeeded,
	}}, nil
}

func (t *taskPages) cancelling(r *http.Request) (page, error) {
	var task operators.TaskDetail
	err := t.api.get(r, operators.Path("tasks", r.PathValue("id")), nil, &task)
	return page{title: "Cancel task", section: "tasks", template: "task-cancel", data: map[string]any{
		"Task": task, "Operator": t.may(r, "operator"), "Back": backOr(r, "/tasks/"+url.PathEscape(r.PathValue("id"))),
	}}, err
}

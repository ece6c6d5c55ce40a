package web

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	tasksShown     = 50
	maxHeldCounted = 10_000 // maximum number of held slots that are counted one by one; enough for all slots of one pool
)

// taskPages show, cancel and retry tasks.
type taskPages struct {
	*pageSender

	api    client
	ledger Ledger
}

func (t *taskPages) registerRoutes(target *site) {
	target.addLivePage("/tasks", t.loadList)
	target.addLivePage("/tasks/{id}", t.loadPage)
	target.addCSVDownload("/tasks.csv", t.selectTasks)
	target.addPage("/tasks/{id}/cancel", t.loadCancelPage)
	target.addPage("/cancel-tasks", t.newBulkConfirmationLoader("cancel", "Cancel tasks"))
	target.addPage("/retry-tasks", t.newBulkConfirmationLoader("retry", "Try tasks again"))
	target.addForm("/tasks/{id}/cancel", "operator", t.api.newEntryAction("tasks", "cancel", "cancelled"))
	target.addForm("/tasks/{id}/retry", "operator", t.api.newEntryAction("tasks", "retry", "retried"))
	target.addForm("/cancel-tasks", "operator", t.newBulkAction("cancel", "cancelled"))
	target.addForm("/retry-tasks", "operator", t.newBulkAction("retry", "retried"))
}

// selectTaskFilters returns the parameters of query that are filters of the API and that the page offers.
func selectTaskFilters(query url.Values) url.Values {
	return nonEmptyParams(query, "state", "pool", "batch", "device", "kind", "error", "retrying", "since", "until")
}

func (t *taskPages) selectTasks(r *http.Request) (csvExport, error) {
	query, err := convertTimes(selectTaskFilters(r.URL.Query()))
	return csvExport{operators.Path("tasks"), query, "tasks"}, err
}

// stateLink is a link that filters by a state, with the number of tasks in this state.
type stateLink struct {
	State   string // empty means all states
	Query   string
	Count   *int64 // nil if unknown, because no counts are stored for the filters
	Current bool
}

// loadList returns the page with the tasks that match the query of the request.
func (t *taskPages) loadList(r *http.Request) (page, error) {
	filters := selectTaskFilters(r.URL.Query())
	pager := newPager(r, filters)
	query, err := convertTimes(pager.query(tasksShown))
	if err != nil {
		return page{}, err
	}
	var list operators.TaskList
	if err := t.api.get(r, operators.Path("tasks"), query, &list); err != nil {
		return page{}, err
	}
	counts, err := t.countByState(r, filters)
	if err != nil {
		return page{}, err
	}
	return page{title: "Tasks", section: "tasks", template: "tasks", watch: newFilterTrigger(filters), data: map[string]any{
		"Tasks": list.Tasks, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(), "Filters": filters, "Query": filters.Encode(),
		"Pills": stateLinks(filters, counts), "Operator": t.mayOfferActions(r, "operator"), "Filtered": len(filters) > 0,
	}}, nil
}

// countByState returns the number of tasks per state. It works only for filters with stored counts: one batch, one pool, or no filter. For
// other filters it returns nil.
func (t *taskPages) countByState(r *http.Request, filters url.Values) (countOfState map[string]int64, err error) {
	if slices.ContainsFunc([]string{"device", "kind", "error", "since", "until"}, filters.Has) || filters.Has("batch") && filters.Has("pool") {
		return nil, nil //nolint:nilnil // no counts are stored for these filters
	}
	if filters.Has("batch") {
		var b operators.Batch
		err := t.api.get(r, operators.Path("batches", filters.Get("batch")), nil, &b)
		return b.Counts, err
	}
	found, err := t.ledger.TaskCounts(r.Context(), filters.Get("pool"), maxHeldCounted)
	if err != nil {
		return nil, err
	}
	counts := map[string]int64{}
	for state, n := range found.ByState {
		counts[string(state)] = n
	}
	if found.More { // possible only without a filter by pool
		totals, err := t.api.Pools.Totals(r.Context(), operators.All{})
		if err != nil {
			return nil, err
		}
		more := max(0, totals.Held-maxHeldCounted)
		counts[operators.Dispatched] += more
		counts[operators.Pending] -= more
	}
	return counts, nil
}

// stateLinks returns the links that filter by each state, for a list with these filters and counts.
func stateLinks(filters url.Values, countOfState map[string]int64) []stateLink {
	list := make([]stateLink, 0, 1+len(operators.TaskStates()))
	var total int64
	for _, n := range countOfState {
		total += n
	}
	for _, state := range append([]string{""}, operators.TaskStates()...) {
		q := maps.Clone(filters)
		q.Del("state")
		q.Del("retrying")
		if state != "" {
			q.Set("state", state)
		}
		p := stateLink{State: state, Query: q.Encode(), Current: filters.Get("state") == state && !filters.Has("retrying")}
		if countOfState != nil {
			n := countOfState[state]
			if state == "" {
				n = total
			}
			p.Count = &n
		}
		list = append(list, p)
	}
	retrying := maps.Clone(filters)
	retrying.Del("state")
	retrying.Set("retrying", "true")
	return append(list, stateLink{State: "retrying", Query: retrying.Encode(), Current: filters.Has("retrying")})
}

// newBulkConfirmationLoader returns the loader of a page with this title that asks for confirmation of actionName (cancel or retry) on many
// tasks. The page shows how many tasks the action would change and, if a state was chosen, the newest of them. A retry is limited to the
// tasks that ended before the page was read.
func (t *taskPages) newBulkConfirmationLoader(actionName, title string) pageLoader {
	return func(r *http.Request) (page, error) {
		filters := selectTaskFilters(r.URL.Query())
		if actionName == "retry" && !filters.Has("until") {
			filters.Set("until", t.now().UTC().Format(time.RFC3339Nano))
		}
		query, err := convertTimes(maps.Clone(filters))
		if err != nil {
			return page{}, err
		}
		var list operators.TaskList
		if filters.Has("state") {
			newest := maps.Clone(query)
			newest["order"], newest["page_size"] = []string{"newest"}, []string{strconv.Itoa(tasksShown)}
			if err := t.api.get(r, operators.Path("tasks"), newest, &list); err != nil {
				return page{}, err
			}
		}
		var counted operators.Bulk
		if t.mayOfferActions(r, "operator") {
			query.Set("dry_run", "true")
			if err := t.api.Do(r.Context(), operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", actionName), Query: query}, &counted); err != nil {
				return page{}, err
			}
		}
		return page{title: title, section: "tasks", template: "bulk", data: map[string]any{
			"Action": actionName, "Title": title, "Filters": filters, "Query": filters.Encode(), "Operator": t.mayOfferActions(r, "operator"), "Count": counted.Tasks, "Tasks": list.Tasks, "Shown": tasksShown,
		}}, nil
	}
}

// maxBulkRounds is the maximum number of API requests for one submitted form that changes many tasks.
// Each request changes up to 20,000 tasks.
const maxBulkRounds = 50

// newBulkAction returns the formAction that performs actionName (cancel or retry) on all tasks that match the filters of the form.
func (t *taskPages) newBulkAction(actionName, messageKey string) formAction {
	return func(r *http.Request) (string, string, error) {
		filters := selectTaskFilters(r.PostForm)
		query, err := convertTimes(maps.Clone(filters))
		for range maxBulkRounds {
			var done operators.Bulk
			if err == nil {
				err = t.api.Do(r.Context(), operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", actionName), Query: query}, &done)
			}
			if err != nil {
				return "", "", err
			}
			if !done.More {
				break
			}
		}
		for _, name := range []string{"state", "since", "until"} {
			filters.Del(name)
		}
		return "/tasks?" + filters.Encode(), messageKey, nil
	}
}

// stateStep is one state in the life of a task, as the page of the task shows it.
type stateStep struct {
	State string
	Past  bool
	Here  bool
}

// stateSteps returns the states of a task so far. If the task is open, the expected next states follow.
func stateSteps(task operators.TaskDetail) []stateStep {
	wasGranted := len(task.Attempts) > 0 || task.Grant != nil
	path := []stateStep{{State: operators.Pending, Past: true}, {State: operators.Dispatched, Past: wasGranted}}
	switch task.State {
	case operators.Pending:
		path[0].Here = true
	case operators.Dispatched:
		path[1].Here = true
	default:
		if !wasGranted {
			path = path[:1]
		}
		return append(path, stateStep{State: task.State, Past: true, Here: true})
	}
	return append(path, stateStep{State: operators.Succeeded})
}

func (t *taskPages) loadPage(r *http.Request) (page, error) {
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
	trigger := updateTrigger{task: task.ID, device: task.Device}
	if task.IsOpen() {
		trigger.pool = task.Pool // the page is read again after events of the pool, because the reasons why the task waits depend on the pool
	}
	return page{title: "Task " + id, section: "tasks", template: "task", watch: trigger, data: map[string]any{
		"Task": task, "Why": why, "Path": stateSteps(task), "Events": events.Events, "More": events.NextPageToken != "", "Operator": t.mayOfferActions(r, "operator"), "Admin": t.mayOfferActions(r, "admin"),
		"Remedies": t.newRemedies(r), "Waits": task.IsOpen(), "Retriable": !task.IsOpen() && task.State != operators.Succeeded,
	}}, nil
}

// loadCancelPage returns the page that asks for confirmation before a task is cancelled.
func (t *taskPages) loadCancelPage(r *http.Request) (page, error) {
	var task operators.TaskDetail
	err := t.api.get(r, operators.Path("tasks", r.PathValue("id")), nil, &task)
	return page{title: "Cancel task", section: "tasks", template: "task-cancel", data: map[string]any{
		"Task": task, "Operator": t.mayOfferActions(r, "operator"), "Back": returnPathOr(r, "/tasks/"+url.PathEscape(r.PathValue("id"))),
	}}, err
}

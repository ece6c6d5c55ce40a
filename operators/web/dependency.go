package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/api"
)

// dependency is a server that this replica needs, as pages show it.
type dependency struct {
	api.Dependency

	Name   string // name for people; dev uses SQLite instead of Postgres
	Impact string // what works, and what does not, while the server is slow or does not answer
	Remedy string // how to repair the server; the remedies against reasons to wait are in remedies.go
}

func (s System) describeDependencies(dependencies []api.Dependency) []dependency {
	shown := make([]dependency, len(dependencies))
	for i, d := range dependencies {
		shown[i] = s.describeDependency(d)
	}
	return shown
}

// describeDependency adds to a dependency its name, the consequences of its failure and the remedy.
func (s System) describeDependency(checked api.Dependency) dependency {
	shown := dependency{Dependency: checked, Name: checked.Name, Remedy: "Check whether it runs and whether this replica reaches it: dispatcher doctor."}
	switch {
	case checked.Name == "mqtt":
		shown.Name, shown.Impact = "The MQTT broker", "Devices cannot report over MQTT."
	case checked.Name == "redis" && checked.Slow:
		shown.Name, shown.Impact = "Redis", "Grants are slow, and parts of this page may be missing."
	case checked.Name == "redis":
		shown.Name, shown.Impact = "Redis", "Results are recorded, but nothing new is granted."
	case checked.Slow:
		shown.Name, shown.Impact = "Postgres", "Reports and pages are slow."
	case checked.Reason != "":
		shown.Name, shown.Impact = "Postgres", "Nothing is granted and no result is recorded until it can write; devices continue and send their results again."
		shown.Remedy = "Free space on its disk."
	default:
		shown.Name, shown.Impact = "Postgres", "Nothing is granted and no result is recorded until it answers; devices continue and send their results again."
	}
	if checked.Name == "postgres" && s.Mode == "dev" {
		shown.Name, shown.Remedy = "SQLite", "Check the free space on its disk, and read the log."
	}
	return shown
}

// StateText returns the predicate of a sentence about a dependency that does not work well, such as "answers slowly".
func (d dependency) StateText() string {
	switch {
	case d.Slow:
		return "answers slowly"
	case d.Reason != "":
		return "refuses writes (" + d.Reason + ")"
	}
	return "does not answer"
}

// filterUnhealthy returns the dependencies that do not answer, answer slowly, or failed their check.
func filterUnhealthy(dependencies []dependency) []dependency {
	return slices.DeleteFunc(dependencies, func(d dependency) bool { return !d.IsUnhealthy() && d.State == "ok" })
}

// outageText returns the text about err for people. A problem of the API keeps its own text, unless it names a server that does not answer.
// Then the text names this server, the time since which it does not answer, and the remedy. Any other error, such as a panic or a fault in
// a template, counts as an outage of Postgres.
func (f *pageSender) outageText(ctx context.Context, err error) string {
	p, isProblem := errors.AsType[*operators.Problem](err)
	if isProblem && (p.Status != http.StatusServiceUnavailable || p.Server == "") {
		return errorText(err)
	}
	d := api.Dependency{Name: "postgres", Slow: errors.Is(err, errPageLate)}
	if isProblem {
		d.Name = p.Server
	}
	found := f.latestState(ctx, d)
	shown := f.system.describeDependency(found)
	if found.Slow && !found.IsUnhealthy() { // its checks answer quickly, so this replica may be the slow part
		shown.Name += ", or this replica,"
	}
	return shown.describeTrouble(f.now())
}

// latestState returns the state that the latest checks found for the server in failed. If the checks found the server healthy, they ran
// before it failed, and latestState returns failed unchanged.
func (f *pageSender) latestState(ctx context.Context, failed api.Dependency) api.Dependency {
	if f.system.Checks == nil {
		return failed
	}
	now, stop := context.WithCancel(ctx)
	stop() // the checks are started but not awaited
	for _, one := range f.system.Checks(now) {
		if one.Name == failed.Name && one.IsUnhealthy() {
			return one
		}
	}
	return failed
}

// describeTrouble describes a dependency that does not work well. The text has the name of the dependency, the time since which it has
// trouble, the consequences and the remedy. If the start of the trouble is unknown, the text has the current time.
func (d dependency) describeTrouble(now time.Time) string {
	since := cmp.Or(d.Since, now).UTC()
	return fmt.Sprintf("%s %s since %s. %s %s", d.Name, d.StateText(), decision.FormatTime(since), d.Impact, d.Remedy)
}

// errPageLate is the error of a page that could not be read in time. The cause is Postgres or this replica,
// because no part of a page waits for Redis until the time limit.
var errPageLate = errors.New("the page was not read in time")

func (f *pageSender) sendTimeoutPage(rw http.ResponseWriter, r *http.Request) {
	f.sendError(rw, r, errPageLate)
}

// isReplacedWithoutReload reports whether the browser will replace the error page with this HTTP status without a reload. It does so if the page
// is live (read again while it is open) and a server does not answer.
func (f *pageSender) isReplacedWithoutReload(r *http.Request, status int) bool {
	return status == http.StatusServiceUnavailable && r.Method == http.MethodGet && f.isLive(r.URL)
}

// retryPageEvery is the time in seconds after which a browser loads a page again that could not be read.
const retryPageEvery = 10

// isReloadedByBrowser reports whether the browser loads the error page with this HTTP status again by itself. It does so if a server did not
// answer and the visitor would lose no input.
func isReloadedByBrowser(r *http.Request, status int) bool {
	return status == http.StatusServiceUnavailable && r.Method == http.MethodGet && formInputOf(r) == nil
}

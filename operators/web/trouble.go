package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/api"
)

// dependency is a server that this replica needs, as pages show it.
type dependency struct {
	api.Dependency

	Name   string // for people: dev has SQLite and no Postgres
	Means  string // what goes on and what does not while it does not answer
	Remedy string
}

// named adds to dependencies what people need to know about them.
func (s System) named(list []api.Dependency) []dependency {
	shown := make([]dependency, len(list))
	for i, d := range list {
		shown[i] = s.show(d)
	}
	return shown
}

func (s System) show(d api.Dependency) dependency {
	shown := dependency{Dependency: d, Name: d.Name, Remedy: "See whether it runs and whether this replica reaches it: dispatcher doctor."}
	switch {
	case d.Name == "mqtt":
		shown.Name, shown.Means = "The MQTT broker", "Devices cannot report over MQTT."
	case d.Name == "redis" && d.Slow:
		shown.Name, shown.Means = "Redis", "Grants are slow, and parts of this page may be missing."
	case d.Name == "redis":
		shown.Name, shown.Means = "Redis", "Results are taken, nothing new is granted."
	case d.Slow:
		shown.Name, shown.Means = "Postgres", "Reports and pages are slow."
	case d.Reason != "":
		shown.Name, shown.Means = "Postgres", "Nothing is granted and no result is taken until it can write; devices go on and send their results again."
		shown.Remedy = "Make room on its disk."
	default:
		shown.Name, shown.Means = "Postgres", "Nothing is granted and no result is taken until it answers; devices go on and send their results again."
	}
	if d.Name == "postgres" && s.Mode == "dev" {
		shown.Name, shown.Remedy = "SQLite", "See whether its disk has room, and look into the log."
	}
	return shown
}

// Says returns the predicate of a sentence about a dependency in trouble.
func (d dependency) Says() string {
	switch {
	case d.Slow:
		return "answers slowly"
	case d.Reason != "":
		return "refuses writes (" + d.Reason + ")"
	}
	return "does not answer"
}

// broken returns the dependencies that do not answer, or slowly.
func broken(list []dependency) []dependency {
	return slices.DeleteFunc(list, func(d dependency) bool { return !d.Bad() && d.State == "ok" })
}

// outage returns the text for an error. If a server does not answer, the text names the server, the time
// since when, and the remedy. The text of any other error is unchanged.
func (f *frame) outage(ctx context.Context, err error) string {
	p, known := errors.AsType[*operators.Problem](err)
	if known && (p.Status != http.StatusServiceUnavailable || p.Server == "") {
		return plainError(err)
	}
	d := api.Dependency{Name: "postgres", Slow: errors.Is(err, errLate)}
	if known {
		d.Name = p.Server
	}
	found := f.known(ctx, d)
	shown := f.system.show(found)
	if found.Slow && !found.Bad() { // its checks are quick
		shown.Name += ", or this replica,"
	}
	return shown.sentence(f.now())
}

// known returns what the checks found of a server that failed just now. If they found it well,
// they are older, and d is returned.
func (f *frame) known(ctx context.Context, d api.Dependency) api.Dependency {
	if f.system.Checks == nil {
		return d
	}
	now, stop := context.WithCancel(ctx)
	stop() // the checks are begun, and not waited for
	for _, one := range f.system.Checks(now) {
		if one.Name == d.Name && one.Bad() {
			return one
		}
	}
	return d
}

// sentence returns the text about a dependency in trouble: its name, since when, consequences and remedy.
// If the time since when is unknown, it is now.
func (d dependency) sentence(now time.Time) string {
	since := cmp.Or(d.Since, now).UTC()
	return fmt.Sprintf("%s %s since %s. %s %s", d.Name, d.Says(), since.Format("15:04:05 UTC"), d.Means, d.Remedy)
}

// errLate is the error of a page that could not be read in time. Its cause is Postgres or this replica:
// no part of a page waits for Redis until the time limit.
var errLate = errors.New("the page was not read in time")

// late answers in place of such a page.
func (f *frame) late(rw http.ResponseWriter, r *http.Request) { f.fail(rw, r, errLate) }

// heals reports whether a page that failed is read again, and shown, by itself: it is live, and
// a server is missing.
func (f *frame) heals(r *http.Request, status int) bool {
	return status == http.StatusServiceUnavailable && r.Method == http.MethodGet && f.isLive(r.URL)
}

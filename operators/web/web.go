package web

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/gate"
)

// Options configure the dashboard.
type Options struct {
	API          API
	Ledger       Ledger
	AdminToken   string        // the bootstrap operator token; empty without one
	Prefix       string        // path that a proxy puts in front, without a trailing slash; empty if there is no prefix
	ReadOnly     bool          // nobody can change anything, whatever their role
	Link         string        // secret of the link that signs in once as the bootstrap operator, only for dev; empty if there is no link
	Gate         *gate.Gate    // the gate of the API
	ReportPeriod time.Duration // report period of devices
	System       System
	Logger       *slog.Logger
	Panicked     rescue.PanicHandler // is notified of panics; by default nobody is
	PageTimeout  time.Duration       // time limit for answering a page; default api.AnswerTimeout
	Now          func() time.Time
}

// API answers requests as an operator. *api.API implements it.
type API interface {
	ServeAs(operator api.Operator, response http.ResponseWriter, request *http.Request)
}

// Web is the dashboard of one replica.
type Web struct {
	log         Ledger
	now         func() time.Time
	events      *eventFollower
	history     *recentPoolCounts
	tallies     tallyReader
	site        *site
	auth        *authenticator
	streams     *streams
	panicked    rescue.PanicHandler
	pageTimeout time.Duration
}

// New builds the dashboard. The dashboard starts no work until Tick is called.
func New(options Options) *Web {
	if options.Now == nil {
		options.Now = time.Now
	}
	sender := newPageSender(options)
	s := &site{pageSender: sender, api: options.API, ledger: options.Ledger, pages: http.NewServeMux(), livePages: http.NewServeMux(), timeLimited: map[string]bool{}}
	sender.isLive = s.isLive
	visitorSessions := &sessions{ledger: options.Ledger, adminHash: hashToken(options.AdminToken), link: options.Link, now: options.Now}
	d := &authenticator{site: s, sessions: visitorSessions, hasLink: options.Link != ""}
	w := &Web{
		log: options.Ledger, now: options.Now, events: &eventFollower{log: options.Ledger}, history: newRecentPoolCounts(),
		site: s, auth: d, streams: newStreams(s, d, options.Panicked), panicked: options.Panicked, pageTimeout: cmp.Or(options.PageTimeout, api.AnswerTimeout),
	}
	apiClient := newClient(options.API)
	waitsCache := newWaitSummaryCache()
	(&poolPages{sender, apiClient, options.System, w.history, newTTLCache[operators.Series](countEvery), newTTLCache[[]operators.Event](countEvery), newTTLCache[slotHoldings](timelineReadEvery), waitsCache, newTTLCache[[]policyUse](usageReadEvery), newTTLCache[map[string]waitSentence](whysReadEvery)}).registerRoutes(s)
	(&profilePages{sender, apiClient}).registerRoutes(s)
	(&limitSetPages{sender, apiClient}).registerRoutes(s)
	(&batchPages{sender, apiClient, waitsCache, newTTLCache[operators.ResultSummary](summaryReadEvery)}).registerRoutes(s)
	(&batchForms{s, apiClient}).registerRoutes(s)
	(&waitingPages{sender, apiClient}).registerRoutes(s)
	(&failurePages{sender, apiClient}).registerRoutes(s)
	(&taskPages{sender, apiClient, options.Ledger}).registerRoutes(s)
	(&devicePages{sender, apiClient, options.ReportPeriod}).registerRoutes(s)
	(&tokenPages{sender, apiClient}).registerRoutes(s)
	(&findPages{apiClient}).registerRoutes(s)
	(&activityPages{sender, apiClient}).registerRoutes(s)
	(&systemPages{options.System, options.Ledger, w.streams.shares.Running}).registerRoutes(s)
	return w
}

// Handler returns a handler that serves the dashboard, and passes requests for all other paths to otherPaths.
func (w *Web) Handler(otherPaths http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /assets/", withSecurityHeaders(serveAssets()))
	mux.Handle("GET /sign-in", withSecurityHeaders(w.auth.sendSignInPage))
	mux.Handle("POST /sign-in", withSecurityHeaders(w.auth.signIn))
	mux.Handle("POST /sign-out", withSecurityHeaders(w.auth.signOut))
	mux.Handle("GET /live", withSecurityHeaders(w.streams.serveStream))
	mux.Handle("/", otherPaths)
	guarded := w.auth.requireVisitor(w.site.pages)
	unlimited, limited := withSecurityHeaders(guarded), withSecurityHeaders(api.WithTimeLimit(w.pageTimeout, api.WithRecovery(w.panicked, guarded), w.site.sendTimeoutPage).ServeHTTP)
	serve := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		// Requests below /v1/ skip the lookup of a page because reports are frequent. The mux would
		// redirect a path that is not canonical, but the API must answer such a path with an error.
		if strings.HasPrefix(r.URL.Path, "/v1/") || !api.IsCanonical(r.URL.Path) {
			otherPaths.ServeHTTP(rw, r)
			return
		}
		_, pattern := w.site.pages.Handler(r)
		switch {
		case w.site.timeLimited[pattern]:
			limited.ServeHTTP(rw, r)
		case pattern != "":
			unlimited.ServeHTTP(rw, r)
		default:
			mux.ServeHTTP(rw, r)
		}
	})
	return withoutPrefix(w.site.prefix, api.WithRecovery(w.panicked, serve))
}

// withoutPrefix removes the path prefix of a proxy from requests. Some proxies pass the prefix on, and others remove it.
func withoutPrefix(prefix string, next http.Handler) http.Handler {
	if prefix == "" {
		return next
	}
	stripped := http.StripPrefix(prefix, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == prefix:
			http.Redirect(w, r, prefix+"/", http.StatusMovedPermanently)
		case strings.HasPrefix(r.URL.Path, prefix+"/"):
			stripped.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// withSecurityHeaders sets the security headers of every page, limits the request body to maxFormBytes, and refuses
// requests that browsers send on behalf of other sites.
func withSecurityHeaders(next http.HandlerFunc) http.Handler {
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	sameOrigin := http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h := rw.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(rw, r.Body, maxFormBytes)
		sameOrigin.ServeHTTP(rw, r)
	})
}

// maxFormBytes is the maximum size of a form in bytes: enough for 20,000 device ids.
const maxFormBytes = 4 << 20

// Tick reads the events of all replicas since the previous call, and starts reading again the open pages that these events may have
// changed. Call it about once a second. While no page is open, Tick only reads the recent counts of the pools, once in countEvery.
func (w *Web) Tick(ctx context.Context) error {
	now, watched := w.now(), w.streams.hub.hasViews()
	countsDue := w.history.isIntervalOver(now)
	if !watched && !countsDue {
		return nil
	}
	events, allChanged, err := w.events.readNewEvents(ctx, watched)
	if err != nil {
		w.streams.hub.setErrorOfAllViews(err)
		return fmt.Errorf("reading events: %w", err)
	}
	w.streams.hub.startReads(events, allChanged) //nolint:contextcheck // startReads does not wait for the reads
	if countsDue {
		return w.addRecentCounts(ctx, now)
	}
	return nil
}

// addRecentCounts adds the counts since its previous call to the history. It counts the grants and reaps in the events of the log that became
// complete since then.
func (w *Web) addRecentCounts(ctx context.Context, now time.Time) error {
	moves, err := w.log.SlotChangesBetween(ctx, w.events.countedID, w.events.completeID)
	if err != nil {
		return fmt.Errorf("reading slot changes: %w", err)
	}
	tallies, err := w.log.ReplicaTallies(ctx)
	if err != nil {
		return fmt.Errorf("reading the counts of replicas: %w", err)
	}
	if err := w.tallies.addTallyGrowth(tallies, w.history); err != nil {
		return err
	}
	w.history.addSlotChanges(moves)
	w.events.countedID = w.events.completeID
	w.history.endInterval(now)
	return nil
}

// Stop ends the streams, so that a server that waits for requests in flight does not wait for them.
func (w *Web) Stop() { w.streams.stop() }

package web

import (
	"context"
	"crypto/sha256"
	"embed"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/api"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

//go:embed assets
var assets embed.FS

// Options set up the dashboard.
type Options struct {
	API        API
	Ledger     Ledger
	AdminToken string        // the bootstrap operator token; empty: none
	Prefix     string        // path a proxy puts in front, without a slash at its end; empty: none
	ReadOnly   bool          // nothing can be changed, whatever the role
	Link       string        // secret of the link that signs in as the bootstrap operator, once; only for dev; empty: none
	Gate       *gate.Gate    // the API's
	Period     time.Duration // in which devices report
	System     System
	Logger     *slog.Logger
	Panicked   rescue.Told // default: nobody
	Now        func() time.Time
}

// API answers requests as an operator; *api.API.
type API interface {
	Inside(who api.Operator, w http.ResponseWriter, r *http.Request)
}

// Ledger is the data that pages read beside the API; *store.Store.
type Ledger interface {
	sessionStore
	eventLog
	InOneSnapshot(ctx context.Context, read func(ctx context.Context, at store.Snapshot) error) error
	PoolUses(ctx context.Context) ([]store.PoolUse, error)
	Moves(ctx context.Context, back, step time.Duration, most int64) (store.Moves, error)
	Replicas(ctx context.Context) ([]store.Replica, time.Time, error)
	ReplicaTallies(ctx context.Context) ([]store.Tallies, error)
	TaskCounts(ctx context.Context, pool string, heldMax int) (store.TaskCounts, error)
	Silent(ctx context.Context, f store.DeviceFilter, since time.Duration, shown int) (store.Silence, error)
	TopErrors(ctx context.Context, batch int64, sample, limit int) ([]store.ErrorCount, error)
}

// Web is the dashboard of one replica.
type Web struct {
	options  Options
	client   *operators.Client // of the API
	sessions *sessions
	sheets   *sheets
	history  *history
	tallied  tallied
	news     *news
	hub      *hub
	streams  streams
	pages    *http.ServeMux // behind the sign-in

	livePages *http.ServeMux // those of pages that the hub may read
}

// New builds the dashboard. It does nothing until Tick is called.
func New(o Options) *Web {
	if o.Now == nil {
		o.Now = time.Now
	}
	w := &Web{options: o, client: newClient(o.API), history: newHistory(), pages: http.NewServeMux(), livePages: http.NewServeMux()}
	w.sessions = &sessions{ledger: o.Ledger, admin: hashOf(o.AdminToken), link: o.Link, now: o.Now}
	w.news = &news{log: o.Ledger}
	w.sheets = newSheets(o)
	w.streams.open = fair.NewShares(liveMost, liveEach)
	w.streams.stop = make(chan struct{})
	w.hub = newHub(w.render, o.Panicked)
	w.routes()
	return w
}

func hashOf(token string) []byte {
	if token == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// Handler serves the dashboard, and passes other paths on.
func (w *Web) Handler(others http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /assets/", w.hardened(http.HandlerFunc(w.asset)))
	mux.Handle("GET /sign-in", w.hardened(http.HandlerFunc(w.signInPage)))
	mux.Handle("POST /sign-in", w.hardened(http.HandlerFunc(w.signIn)))
	mux.Handle("POST /sign-out", w.hardened(http.HandlerFunc(w.signOut)))
	mux.Handle("GET /live", w.hardened(http.HandlerFunc(w.live)))
	mux.Handle("/", others)
	inside := w.hardened(http.HandlerFunc(w.inside))
	serve := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !api.Canonical(r.URL.Path) { // the mux would redirect it; the API says what is wrong
			others.ServeHTTP(rw, r)
			return
		}
		if _, pattern := w.pages.Handler(r); pattern != "" {
			inside.ServeHTTP(rw, r)
			return
		}
		mux.ServeHTTP(rw, r)
	})
	return unprefixed(w.options.Prefix, api.Rescued(w.options.Panicked, serve))
}

// unprefixed removes the prefix of a proxy from a path: some proxies pass it on,
// some do not.
func unprefixed(prefix string, next http.Handler) http.Handler {
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

// hardened sets what browsers are told about every page, and refuses what other
// sites let them send.
func (w *Web) hardened(next http.Handler) http.Handler {
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	own := http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h := rw.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(rw, r.Body, maxForm)
		own.ServeHTTP(rw, r)
	})
}

// maxForm bounds a form: 20,000 device ids.
const maxForm = 4 << 20

func (w *Web) asset(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Cache-Control", "no-cache")
	http.ServeFileFS(rw, r, assets, strings.TrimPrefix(r.URL.Path, "/"))
}

func (w *Web) url(path string) string { return w.options.Prefix + path }

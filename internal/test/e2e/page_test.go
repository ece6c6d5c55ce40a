package e2e

import (
	"context"
	_ "embed"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

type browser struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp needs this context for each action
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(servers.RequireProgram(t, "chromium-headless-shell")), chromedp.NoSandbox, chromedp.DisableGPU)
	allocated, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, done := chromedp.NewContext(allocated)
	t.Cleanup(func() { done(); end() })
	b := &browser{t: t, ctx: ctx}
	b.openBlank(ctx)
	return b
}

// openBlank opens a tab that lives as long as ctx.
func (b *browser) openBlank(ctx context.Context) {
	b.t.Helper()
	must.Succeed(b.t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
}

func (b *browser) runActions(ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	must.Succeed(b.t, chromedp.Do(ctx, actions...))
}

// tab is an open page of the dashboard.
type tab struct {
	*browser

	name string
	ctx  context.Context //nolint:containedctx // chromedp needs this context for each action
}

// openTab opens a page and sets a mark in it. If the page were loaded again, the mark would be gone.
func (b *browser) openTab(name, url string) *tab {
	b.t.Helper()
	ctx, done := chromedp.NewContext(b.ctx)
	b.t.Cleanup(done)
	b.openBlank(ctx)
	one := &tab{browser: b, name: name, ctx: ctx}
	one.open(url)
	return one
}

func (p *tab) open(url string) {
	p.t.Helper()
	p.runActions(p.ctx, chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS("body")))
	p.waitForJS(`window.marked = true`)
}

// signIn enters the operator's token on the page.
func (p *tab) signIn() {
	p.t.Helper()
	p.runActions(p.ctx, chromedp.SendKeys(chromedp.CSS("#token"), adminToken), chromedp.Click(chromedp.CSS("button.primary")))
	p.waitForJS(`location.pathname !== "/sign-in" && document.querySelector("main h1") !== null`)
}

// waitForJS waits until a JavaScript expression is true in the page.
func (p *tab) waitForJS(expression string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, recoveryLimit)
	defer cancel()
	guarded := "(() => { try { return !!(" + expression + "); } catch { return false; } })()"
	if err := poll(ctx, ledgerPause, func() bool {
		yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool](guarded))
		return err == nil && yes
	}); err != nil {
		p.t.Fatalf("%s: waited in vain for %s", p.name, expression)
	}
}

// valuesScript is a JavaScript function that takes a document and returns the values on the page.
//
//go:embed testdata/numbers.js
var valuesScript string

// readValuesJS returns a JavaScript expression for the values of the open page.
func readValuesJS() string { return strings.TrimSpace(valuesScript) + "(document)" }

// readValues returns the values that the page shows, by their place.
func (p *tab) readValues() map[string]string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, recoveryLimit)
	defer cancel()
	shown, err := chromedp.Run(ctx, chromedp.Evaluate[map[string]string](readValuesJS()))
	if err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	return shown
}

// timeText formats a time as pages do.
func timeText(t *time.Time) string {
	if t == nil {
		return "–"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func stateText(state string) string { return strings.ReplaceAll(state, "_", " ") }

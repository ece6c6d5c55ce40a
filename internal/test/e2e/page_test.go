package e2e

import (
	"context"
	_ "embed"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// browser is a browser of one test.
type browser struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp's handle of it
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(servers.Need(t, "chromium")), chromedp.NoSandbox, chromedp.DisableGPU)
	allocated, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, done := chromedp.NewContext(allocated)
	t.Cleanup(func() { done(); end() })
	b := &browser{t: t, ctx: ctx}
	b.start(ctx)
	return b
}

// start opens a tab, which lives as long as ctx.
func (b *browser) start(ctx context.Context) {
	b.t.Helper()
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) must(ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// tab is an open page of the dashboard.
type tab struct {
	*browser

	name string
	ctx  context.Context //nolint:containedctx // chromedp's handle of it
}

// tab opens a page and marks it. A reload would remove the mark.
func (b *browser) tab(name, url string) *tab {
	b.t.Helper()
	ctx, done := chromedp.NewContext(b.ctx)
	b.t.Cleanup(done)
	b.start(ctx)
	one := &tab{browser: b, name: name, ctx: ctx}
	one.open(url)
	return one
}

func (p *tab) open(url string) {
	p.t.Helper()
	p.must(p.ctx, chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS("body")))
	p.until(`window.marked = true`)
}

// signIn enters the operator's token.
func (p *tab) signIn() {
	p.t.Helper()
	p.must(p.ctx, chromedp.SendKeys(chromedp.CSS("#token"), adminToken), chromedp.Click(chromedp.CSS("button.primary")))
	p.until(`location.pathname !== "/sign-in" && document.querySelector("main h1") !== null`)
}

// until waits until a JavaScript expression is true in the page.
func (p *tab) until(expression string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, recoveryLimit)
	defer cancel()
	guarded := "(() => { try { return !!(" + expression + "); } catch { return false; } })()"
	if err := poll(ctx, look, func() bool {
		yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool](guarded))
		return err == nil && yes
	}); err != nil {
		p.t.Fatalf("%s: waited in vain for %s", p.name, expression)
	}
}

// numbersScript is a JavaScript function that takes a document and returns the values on the page.
//
//go:embed testdata/numbers.js
var numbersScript string

// numbersHere returns a JavaScript expression for the values of the open page.
func numbersHere() string { return strings.TrimSpace(numbersScript) + "(document)" }

// numbers returns the values that the page shows, by their place.
func (p *tab) numbers() map[string]string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, recoveryLimit)
	defer cancel()
	shown, err := chromedp.Run(ctx, chromedp.Evaluate[map[string]string](numbersHere()))
	if err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	return shown
}

// shown formats a time as pages do.
func shown(t *time.Time) string {
	if t == nil {
		return "–"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func words(state string) string { return strings.ReplaceAll(state, "_", " ") }

package web_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// tab is a tab of a browser. If the page writes an unexpected message to its console or opens a dialog, the test
// fails at its end.
type tab struct {
	rig.Test
	ctx context.Context //nolint:containedctx // chromedp's handle of the tab

	mu               sync.Mutex
	messages         []string
	expectedMessages []string // parts of the messages that are expected
}

// chromium is the browser of all tests of this package. Each test has its tabs in a separate context
// with separate cookies. The zero value is ready to use.
type chromium struct {
	once sync.Once
	ctx  context.Context //nolint:containedctx // chromedp's handle of the browser
	err  error
	end  func()
}

func (c *chromium) start(t *testing.T) context.Context {
	t.Helper()
	path := servers.RequireProgram(t, "chromium-headless-shell")
	c.once.Do(func() {
		options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU)
		allocated, end := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, done := chromedp.NewContext(allocated)
		c.ctx, c.end = ctx, func() { done(); end() }
		c.err = chromedp.Do(ctx, chromedp.Navigate("about:blank")) // the browser lives as long as its first tab
	})
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.ctx
}

func (c *chromium) Close() {
	if c.end != nil {
		c.end()
	}
}

// openTab opens a tab whose cookies and storage no other test sees.
func openTab(t *testing.T) *tab {
	t.Helper()
	ctx, done := chromedp.NewContext(browser.start(t), chromedp.WithNewBrowserContext())
	t.Cleanup(done)
	return newTab(t, ctx)
}

// openSecondTab opens another tab with the same cookies as this tab.
func (b *tab) openSecondTab() *tab {
	ctx, done := chromedp.NewContext(b.ctx)
	b.Cleanup(done)
	return newTab(b.T, ctx)
}

func newTab(t *testing.T, ctx context.Context) *tab {
	t.Helper()
	b := &tab{Test: rig.Test{T: t}, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // the tab lives as long as this ctx
		t.Fatal(err)
	}
	console := chromedp.Console(ctx)
	go func() {
		for m, err := range console {
			if err != nil {
				return
			}
			if strings.HasPrefix(m.Text, "Autofocus processing was blocked") {
				continue // the test ended before the page was complete
			}
			b.addMessage(string(m.Type) + ": " + m.Text + " " + m.URL)
		}
	}()
	dialogs := chromedp.Events(ctx, page.JavascriptDialogOpening)
	go func() {
		for d, err := range dialogs {
			if err != nil {
				return
			}
			b.addMessage("dialog: " + d.Message)
			_, _ = chromedp.Call(ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}
	}()
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, about := range b.messages {
			if !slices.ContainsFunc(b.expectedMessages, func(part string) bool { return strings.Contains(about, part) }) {
				t.Errorf("on the console: %s", about)
			}
		}
	})
	return b
}

func (b *tab) addMessage(message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = append(b.messages, message)
}

// expectMessage names a part of a console message that is expected, so that it does not fail the test. The browser
// may write the message before or after this call.
func (b *tab) expectMessage(part string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expectedMessages = append(b.expectedMessages, part)
}

func (b *tab) runActions(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*patience)
	defer cancel()
	for _, action := range actions {
		err := chromedp.Do(ctx, action)
		// A page may replace an element that was just found. Then nothing has been done to the element yet, so the
		// action is tried again.
		for err != nil && strings.Contains(err.Error(), "Could not find node") {
			err = chromedp.Do(ctx, action)
		}
		b.Must(err)
	}
}

func (b *tab) open(url string) {
	b.Helper()
	b.runActions(chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS("main")))
}

// evalJS evaluates a JavaScript expression in the page and returns its value.
func evalJS[T any](b *tab, expression string) T {
	b.Helper()
	value, err := tryEvalJS[T](b, expression)
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return value
}

func tryEvalJS[T any](b *tab, expression string) (value T, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression))
}

func (b *tab) elementText(selector string) string {
	b.Helper()
	return evalJS[string](b, fmt.Sprintf("(document.querySelector(%q) || {textContent: ''}).textContent", selector))
}

// waitForJS waits until an expression is true in the page. While the browser loads the next page, there is no page
// in which to evaluate it, so waitForJS tries again.
func (b *tab) waitForJS(expression string) {
	b.Helper()
	guarded := "(() => { try { return !!(" + expression + "); } catch { return false; } })()"
	b.Await(expression, func() bool {
		yes, err := tryEvalJS[bool](b, guarded)
		return err == nil && yes
	}, func() string { return evalJS[string](b, "document.body.innerText.slice(0, 3000)") })
}

// click clicks the element that the selector finds, as a person would do.
func (b *tab) click(selector string) {
	b.Helper()
	b.runActions(chromedp.Click(chromedp.CSS(selector)))
}

// screenStyle is one way to show a page: a colour scheme and a size.
type screenStyle struct {
	name, scheme  string
	width, height int64
	forced        string // "active" means the colours of the system
}

// checkScreen shows the page wide and narrow, and checks that it fits. If WEB_SHOTS names a folder, checkScreen
// stores pictures there, light and dark. A picture takes as long as showing ten pages.
func (b *tab) checkScreen(name string) {
	b.Helper()
	for _, look := range []screenStyle{{"light", "light", 1440, 1000, ""}, {"dark", "dark", 1440, 1000, ""}, {"narrow", "light", 390, 860, ""}, {"narrow-dark", "dark", 390, 860, ""}} {
		dir := os.Getenv("WEB_SHOTS")
		if dir == "" && look.scheme == "dark" {
			continue // this style is as wide as the light page
		}
		b.applyStyle(look)
		if wide := evalJS[int64](b, "document.documentElement.scrollWidth"); wide > look.width {
			b.Errorf("%s is %d wide on a screen of %d", name, wide, look.width)
		}
		if dir != "" {
			b.saveScreenshot(filepath.Join(dir, name+"-"+look.name+".png"))
		}
	}
}

// applyStyle shows the page in this style.
func (b *tab) applyStyle(l screenStyle) {
	b.Helper()
	b.runActions(chromedp.EmulateViewport(l.width, l.height))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}, {Name: "forced-colors", Value: l.forced}},
	})
	b.Must(err)
}

// saveScreenshot stores a picture of the page in a file.
func (b *tab) saveScreenshot(file string) {
	b.Helper()
	image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	b.Must(err)
	b.Must(os.WriteFile(file, image, 0o600))
}

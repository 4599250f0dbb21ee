// Package webtest drives a real browser, Debian's Chromium, for tests of the page. The product does not import it.
package webtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Chromium is one tab, and what the browser complained of.
type Chromium struct {
	t   testing.TB
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// patience is how long a page may take to show something, on a machine that is busy with other tests.
const patience = 20 * time.Second

// New starts one; without it the test fails. wrap changes how it is started, in another network namespace for
// example; nil: it is not.
func New(t testing.TB, wrap func(*exec.Cmd)) *Chromium {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: ./scripts/test --install")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, chromedp.IgnoreCertErrors, chromedp.Flag("disable-dev-shm-usage", true)) // of root, in a container
	if wrap != nil {
		opts = append(opts, chromedp.ModifyCmdFunc(wrap))
	}
	alloc, end := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	c := &Chromium{ctx: ctx, t: t}
	if err := chromedp.Listen(ctx, c.hear); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	if _, err := chromedp.Call(ctx, cdplog.Enable, struct{}{}); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return c
}

func (c *Chromium) hear(ev any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		c.complaints = append(c.complaints, e.ExceptionDetails.Text)
	case *cdplog.EventEntryAdded:
		c.complaints = append(c.complaints, e.Entry.Text+" "+e.Entry.URL)
	}
}

// run runs an action, for no longer than patience.
func run[T any](c *Chromium, a chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, a)
}

func (c *Chromium) do(what string, a chromedp.Action[chromedp.Void]) {
	c.t.Helper()
	if _, err := run(c, a); err != nil {
		c.t.Fatalf("%s: %v; the page: %s", what, err, c.page())
	}
}

// Go opens an address.
func (c *Chromium) Go(url string) { c.t.Helper(); c.do(url, chromedp.Navigate(url)) }

// Run runs JavaScript, which may lead to another page.
func (c *Chromium) Run(js string) {
	c.t.Helper()
	_, err := run(c, chromedp.Evaluate[chromedp.Void](js))
	if err != nil && !strings.Contains(err.Error(), "navigated") {
		c.t.Fatalf("%s: %v; the page: %s", js, err, c.page())
	}
}

// Click clicks on an element, once it is there.
func (c *Chromium) Click(css string) {
	c.t.Helper()
	c.Shows(css, fmt.Sprintf("!!document.querySelector(%q)", css))
	c.Run(fmt.Sprintf("document.querySelector(%q).click()", css))
}

// Keys presses keys.
func (c *Chromium) Keys(keys string) { c.t.Helper(); c.do(keys, chromedp.KeyEvent(keys)) }

// Shows waits until an expression of JavaScript is true.
func (c *Chromium) Shows(what, js string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if is, err := run(c, chromedp.Evaluate[bool](js)); err == nil && is {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: never %s; the page: %s", what, js, c.page())
		}
	}
}

// Text is what JavaScript gives.
func (c *Chromium) Text(js string) string {
	c.t.Helper()
	text, err := run(c, chromedp.Evaluate[string](js))
	if err != nil {
		c.t.Fatalf("%s: %v", js, err)
	}
	return text
}

func (c *Chromium) page() string {
	text, _ := run(c, chromedp.Evaluate[string]("location.href + ' ' + document.body.innerText"))
	return text
}

// Calm checks that the browser had nothing to complain of, but for what is expected: a policy that was broken, an error
// of a script, what was not found.
func (c *Chromium) Calm(but ...string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
next:
	for _, what := range c.complaints {
		for _, b := range but {
			if strings.Contains(what, b) {
				continue next
			}
		}
		c.t.Errorf("the browser complains: %s", what)
	}
}

// Picture keeps what is to be seen in the folder SPARKRUN_PICTURES, if that is set: on a desktop and on a phone, light
// and dark.
func (c *Chromium) Picture(name string) {
	c.t.Helper()
	dir := os.Getenv("SPARKRUN_PICTURES")
	if dir == "" {
		return
	}
	for size, wide := range map[string]int64{"desktop": 1280, "phone": 390} {
		for _, scheme := range []string{"light", "dark"} {
			_, err := chromedp.Call(c.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
			if err == nil {
				_, err = run(c, chromedp.EmulateViewport(wide, 840))
			}
			var png []byte
			if err == nil {
				time.Sleep(100 * time.Millisecond) // until it is drawn
				png, err = run(c, chromedp.CaptureScreenshot())
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%s.png", name, size, scheme)), png, 0o600)
			}
			if err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.do("viewport", chromedp.EmulateViewport(1280, 840))
}

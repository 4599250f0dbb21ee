package web

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

//go:embed assets
var assets embed.FS

// policy lets a page have what lies beside it, and nothing else: no script or style of a text that got into it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// unknown is all that is said to whom it does not know.
const unknown = "This is sparkrun's page, for those who have a link to it: run `sparkrun web` on a machine of the cluster, " +
	"or where you have logged in to it. A link opens once, within five minutes.\n"

func (w *Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	h := rw.Header()
	for name, value := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
		"Referrer-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8",
	} {
		h.Set(name, value)
	}
	if !w.named(r) { // a page of somebody else's, whose name was made to lead here
		http.Error(rw, "this host name is not one of this page", http.StatusMisdirectedRequest)
		return
	}
	if token, is := strings.CutPrefix(r.URL.Path, "/in/"); is {
		w.enterBy(rw, r, token)
		return
	}
	v, ok := w.visitOf(r)
	if !ok {
		strange(rw, r)
		return
	}
	if r.Method == http.MethodPost && !v.means(r) {
		http.Error(rw, "this form is not of your page: open it again", http.StatusForbidden)
		return
	}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), visitKey{}, v))
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)() // nothing outlasts the session
	r = r.WithContext(ctx)
	http.StripPrefix(strings.TrimSuffix(v.folder(), "/"), w.mux).ServeHTTP(rw, r)
}

// strangeStyle is all the style that whom it does not know gets.
const strangeStyle = "body { font: 15px/1.5 system-ui, sans-serif; max-width: 40em; margin: 4em auto; padding: 0 1em; }"

// strange answers whom it does not know; a browser by a page.
func strange(rw http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.Error(rw, unknown, http.StatusUnauthorized)
		return
	}
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	sum := sha256.Sum256([]byte(strangeStyle))
	rw.Header().Set("Content-Security-Policy", strings.Replace(policy, "style-src 'self'",
		"style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'", 1))
	rw.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(rw, `<!doctype html><html lang="en"><meta charset="utf-8"><title>sparkrun</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>`+strangeStyle+`</style><h1>sparkrun</h1><p>`+template.HTMLEscapeString(unknown)) // the browser may be gone
}

type visitKey struct{}

func visiting(r *http.Request) visit { return r.Context().Value(visitKey{}).(visit) }

// named tells whether a request names this host: on loopback as browsers name that, by TLS as the certificate does.
func (w *Web) named(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if r.TLS == nil {
		return slices.Contains([]string{"127.0.0.1", "localhost", "::1"}, host)
	}
	_, cert, _, _ := w.outside()
	shown := certificateOf(cert)
	return shown != nil && shown.Leaf != nil && shown.Leaf.VerifyHostname(host) == nil
}

// cookieName tells a session's cookie; one with this beginning is not sent without TLS.
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Secure-sparkrun"
	}
	return "sparkrun"
}

// visitOf finds the session of a request: its cookie has to be that of the folder asked for.
func (w *Web) visitOf(r *http.Request) (visit, bool) {
	for _, c := range r.CookiesNamed(cookieName(r)) {
		if v, ok := w.known(c.Value); ok && strings.HasPrefix(r.URL.Path, v.folder()) {
			return v, true
		}
	}
	return visit{}, false
}

// enterBy opens the page by a link. What only fetches links to show what they are has to leave it whole.
func (w *Web) enterBy(rw http.ResponseWriter, r *http.Request, token string) {
	switch {
	case r.Method != http.MethodGet:
		rw.Header().Set("Allow", "GET")
		http.Error(rw, "a link is opened by GET", http.StatusMethodNotAllowed)
		return
	case r.Header.Get("Sec-Purpose") != "":
		http.Error(rw, "open it", http.StatusForbidden)
		return
	}
	v, ok := w.enter(token)
	if !ok {
		strange(rw, r)
		return
	}
	http.SetCookie(rw, &http.Cookie{Name: cookieName(r), Value: v.cookie, Path: v.folder(), MaxAge: int(longestFor / time.Second),
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
	// A redirect would not have the cookie where a page of another site led here.
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(rw, strings.ReplaceAll(`<!doctype html><meta charset="utf-8"><title>sparkrun</title>
<link rel="icon" href="FOLDERicon.svg"><meta http-equiv="refresh" content="0;url=FOLDER"><a href="FOLDER">sparkrun</a>
`, "FOLDER", v.folder())) // the browser may be gone
}

// means tells whether a form was this session's own, made for what it is sent to.
func (v visit) means(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "" && site != "same-origin" {
		return false
	}
	r.Body = http.MaxBytesReader(nil, r.Body, 16<<10)
	if r.ParseForm() != nil {
		return false
	}
	does := strings.TrimPrefix(r.URL.Path, v.folder())
	return hmac.Equal([]byte(r.PostForm.Get("csrf")), []byte(v.formToken(does, r.PostForm.Get("id"))))
}

func (v visit) formToken(does, id string) string { return v.sealed("form " + does + " " + id) }

func (w *Web) routes() *http.ServeMux {
	m := http.NewServeMux()
	for name, view := range views {
		path := name
		if name == "overview" {
			path = "{$}"
		}
		m.HandleFunc("GET /"+path, func(rw http.ResponseWriter, r *http.Request) {
			w.show(rw, r, name, view.title)
		})
	}
	m.HandleFunc("GET /", func(rw http.ResponseWriter, r *http.Request) {
		none := draw("page", "none", struct{ ID, What string }{"page", "page"})
		w.frame(rw, w.page(r, w.seen.now.Load()), "", "", "Not found", whole(none), http.StatusNotFound)
	})
	m.HandleFunc("GET /events", w.events)
	m.HandleFunc("GET /lines", w.lines)
	m.HandleFunc("GET /raw", w.raw)
	for _, does := range []string{"stop", "restart"} {
		m.HandleFunc("GET /"+does, w.confirm(does))
		m.HandleFunc("POST /"+does, w.act(does))
	}
	m.HandleFunc("POST /doctor", w.examine)
	m.HandleFunc("POST /why", w.askWhy)
	m.HandleFunc("POST /leave", func(rw http.ResponseWriter, r *http.Request) {
		w.leave(visiting(r).session)
		strange(rw, r)
	})
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, name := range []string{"page.js", "page.css", "icon.svg"} {
		m.HandleFunc("GET /"+name, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Del("Content-Type")
			rw.Header().Set("Cache-Control", "private, max-age=86400") // another build's has another name
			http.ServeFileFS(rw, r, files, name)
		})
	}
	return m
}

// page is what a view is drawn with.
type page struct {
	*seen
	web   *Web
	visit visit
	q     url.Values
}

// may tells whether the visitor may stop and restart a user's jobs.
func (p *page) may(user string) bool {
	of := p.visit.Of.User
	return of.UID == 0 || of.Name == user
}

// firstWithin bounds how long a page waits for what is not known yet; the rest comes with its events.
const firstWithin = 150 * time.Millisecond

func (w *Web) page(r *http.Request, s *seen) *page {
	return &page{seen: s, web: w, visit: visiting(r), q: r.URL.Query()}
}

// shell is what all pages have.
type shell struct {
	Title, View, Version, Host, User, Leave string
	Tabs                                    []tab
	Body                                    template.HTML
}

type tab struct {
	Path, Text string
	On         bool
}

func (w *Web) show(rw http.ResponseWriter, r *http.Request, name, title string) {
	defer w.seen.watch()()
	p := w.page(r, w.seen.first(r.Context(), firstWithin))
	w.frame(rw, p, name, name, title, whole(w.parts(name, p)...), http.StatusOK)
}

// whole is the HTML of parts.
func whole(parts ...part) template.HTML {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.whole())
	}
	return template.HTML(b.String()) //nolint:gosec // of our templates
}

// frame writes a page: of a view, or a still one under the tab of one.
func (w *Web) frame(rw http.ResponseWriter, p *page, name, moves, title string, body template.HTML, status int) {
	s := shell{Title: title, View: moves, Version: w.cfg.Version, Host: w.cfg.Host,
		User: p.visit.Of.User.Name, Leave: p.visit.formToken("leave", ""), Body: body}
	for _, t := range tabs {
		t.On = t.Path == name || t.Path == "./" && name == "overview" || t.Path == views[name].under
		s.Tabs = append(s.Tabs, t)
	}
	var b bytes.Buffer
	if err := templates().ExecuteTemplate(&b, "shell", s); err != nil {
		w.cfg.Logger.Error("draw a page", "view", name, "error", err)
		http.Error(rw, "this page cannot be drawn", http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	rw.WriteHeader(status)
	rw.Write(b.Bytes()) //nolint:errcheck // the browser is gone
}

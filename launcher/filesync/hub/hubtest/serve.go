package hubtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	apiPath     = regexp.MustCompile(`^/api/(models|datasets)/(.+?)(?:/(revision|tree)/([^/]+)|/(auth-check))?/?$`)
	resolvePath = regexp.MustCompile(`^/(?:(datasets)/)?(.+?)/resolve/([^/]+)/(.+)$`)
)

func (s *Server) endpoint(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/_standin/") {
		s.orders(w, r)
		return
	}
	s.note(r)
	path := r.URL.EscapedPath()
	if f := s.find(r.URL.Path, true); f != nil && f.instead(w, s) {
		return
	}
	if m := apiPath.FindStringSubmatch(path); m != nil {
		s.api(w, r, m[1], unescape(m[2]), m[3], unescape(m[4]), m[5] != "")
	} else if m := resolvePath.FindStringSubmatch(path); m != nil {
		kind := m[1]
		if kind == "" {
			kind = "models"
		}
		s.resolve(w, r, kind, unescape(m[2]), unescape(m[3]), unescape(m[4]))
	} else {
		refuse(w, 404, "", "no such page")
	}
}

func unescape(s string) string {
	if t, err := url.PathUnescape(s); err == nil {
		return t
	}
	return s
}

// repo answers as the Hub does: it hides what is private, and tells what is gated.
func (s *Server) repo(w http.ResponseWriter, r *http.Request, kind, name, rev string, files bool) *Repo {
	s.mu.Lock()
	repo := s.repos[kind+"/"+name]
	s.mu.Unlock()
	token, given := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	good := given && slices.Contains(s.Tokens, token)
	switch {
	case given && !good && !strings.HasPrefix(token, "other"): // an account that was not let in
		refuse(w, 401, "", "Invalid credentials in Authorization header")
	case repo == nil && !given, repo != nil && repo.Private && !given:
		refuse(w, 401, "RepoNotFound", "Invalid username or password.")
	case repo == nil, repo.Private && !good:
		refuse(w, 404, "RepoNotFound", "Repository not found")
	case repo.Gated && !good && files:
		refuse(w, map[bool]int{true: 403, false: 401}[given], "GatedRepo", "Access to model "+name+" is restricted.")
	case rev != "" && rev != "main" && rev != repo.Commit && !slices.Contains(repo.Refs, rev):
		refuse(w, 404, "RevisionNotFound", "Invalid rev id: "+rev)
	default:
		return repo
	}
	return nil
}

func (s *Server) api(w http.ResponseWriter, r *http.Request, kind, name, verb, rev string, auth bool) {
	repo := s.repo(w, r, kind, name, rev, auth)
	if repo == nil {
		return
	}
	switch {
	case auth:
		answer(w, map[string]any{})
	case verb == "tree":
		s.tree(w, r, repo)
	default:
		var siblings []map[string]any
		for _, p := range sorted(repo.entries) {
			siblings = append(siblings, map[string]any{"rfilename": p})
		}
		gated := any(false)
		if repo.Gated {
			gated = "auto"
		}
		answer(w, map[string]any{"id": name, "modelId": name, "sha": repo.Commit, "private": repo.Private,
			"gated": gated, "siblings": siblings, "tags": []string{}})
	}
}

func (s *Server) tree(w http.ResponseWriter, r *http.Request, repo *Repo) {
	names := sorted(repo.entries)
	from, page := number(r.URL.Query().Get("cursor")), s.Page
	if page == 0 {
		page = 1000
	}
	to := min(from+page, len(names))
	list := []map[string]any{}
	for _, p := range names[min(from, to):to] {
		e := repo.entries[p]
		item := map[string]any{"type": "file", "path": p, "size": e.Size, "oid": e.oid}
		if e.LFS {
			item["lfs"] = map[string]any{"oid": e.SHA256, "size": e.Size, "pointerSize": 134}
		}
		list = append(list, item)
		if i := strings.LastIndex(p, "/"); i > 0 {
			list = append(list, map[string]any{"type": "directory", "path": p[:i], "size": 0, "oid": repo.Commit})
		}
	}
	if to < len(names) {
		next := *r.URL
		q := next.Query()
		q.Set("cursor", fmt.Sprint(to))
		next.RawQuery = q.Encode()
		w.Header().Set("Link", "<"+s.Endpoint+next.String()+`>; rel="next"`)
	}
	answer(w, list)
}

func (s *Server) resolve(w http.ResponseWriter, r *http.Request, kind, name, rev, file string) {
	repo := s.repo(w, r, kind, name, rev, true)
	if repo == nil {
		return
	}
	e, ok := repo.entries[file]
	w.Header().Set("X-Repo-Commit", repo.Commit)
	if !ok {
		refuse(w, 404, "EntryNotFound", "Entry not found")
		return
	}
	if !e.LFS {
		w.Header().Set("ETag", `"`+e.oid+`"`)
		s.bytes(w, r, file, e, "")
		return
	}
	w.Header().Set("X-Linked-ETag", `"`+e.SHA256+`"`)
	w.Header().Set("X-Linked-Size", fmt.Sprint(e.Size))
	s.mu.Lock()
	sig := fmt.Sprintf("s%d", len(s.spent)+1)
	s.spent[sig] = 0
	s.mu.Unlock()
	q := url.Values{"Signature": {sig}, "repo": {kind + "/" + name}, "file": {file}}
	w.Header().Set("Location", s.CDN+"/blobs/"+e.SHA256+"?"+q.Encode())
	w.WriteHeader(http.StatusFound)
}

func (s *Server) cdn(w http.ResponseWriter, r *http.Request) {
	s.note(r)
	if r.Header.Get("Authorization") != "" {
		s.mu.Lock()
		s.leaks = append(s.leaks, r.URL.Path)
		s.mu.Unlock()
	}
	q := r.URL.Query()
	s.mu.Lock()
	repo := s.repos[q.Get("repo")]
	spent, known := s.spent[signature(r.URL)]
	s.mu.Unlock()
	if repo == nil || !known || s.Expire > 0 && spent >= s.Expire {
		http.Error(w, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
			http.StatusForbidden)
		return
	}
	e := repo.entries[q.Get("file")]
	w.Header().Set("ETag", `"`+e.SHA256[:32]+`"`) // S3's own, and not the Hub's
	s.bytes(w, r, q.Get("file"), e, signature(r.URL))
}

// bytes serves a range of a file, with what was ordered for it.
func (s *Server) bytes(w http.ResponseWriter, r *http.Request, file string, e entry, sig string) {
	f := s.find(file, false)
	if f == nil {
		f = &Fault{}
	}
	if f.instead(w, s) {
		return
	}
	from, to, status := int64(0), e.Size, http.StatusOK
	if text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && !f.Whole {
		last := int64(-1)
		_, _ = fmt.Sscanf(text, "%d-%d", &from, &last) // "5-" has no end
		if from >= e.Size {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", e.Size+f.Grow))
			http.Error(w, "no such range", http.StatusRequestedRangeNotSatisfiable)
			return
		}
		if last >= 0 {
			to = min(last+1, e.Size)
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, e.Size+f.Grow))
	}
	length := to - from
	if status == http.StatusOK {
		length += f.Grow
	}
	w.Header().Set("Content-Length", fmt.Sprint(length))
	w.Header().Set("Accept-Ranges", "bytes")
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	out := &out{s: s, w: w, sig: sig, fault: f, began: time.Now(), gone: r.Context().Done(),
		flush: http.NewResponseController(w)}
	_, _ = io.CopyBuffer(out, struct{ io.Reader }{io.NewSectionReader(e.Reader, from, to-from)}, make([]byte, 64<<10))
	if f.Grow > 0 {
		panic(http.ErrAbortHandler)
	}
}

// out sends bytes until its fault, or the end of its signature, is reached.
type out struct {
	s     *Server
	w     http.ResponseWriter
	sig   string
	fault *Fault
	n     int64
	began time.Time
	flush *http.ResponseController
	gone  <-chan struct{}
}

func (o *out) Write(p []byte) (int, error) {
	f := o.fault
	if (f.Cut || f.Flip || f.Stall > 0) && o.n+int64(len(p)) > f.After {
		good := max(f.After-o.n, 0)
		if f.Flip {
			q := slices.Clone(p)
			for i := good; i < int64(len(q)); i++ {
				q[i] ^= 0xff
			}
			return o.send(q)
		}
		_, _ = o.send(p[:good])
		_ = o.flush.Flush()
		if f.Cut {
			panic(http.ErrAbortHandler)
		}
		o.s.pause(f.Stall, o.gone)
		o.fault = &Fault{}
		_, err := o.send(p[good:])
		return len(p), err
	}
	return o.send(p)
}

func (o *out) send(p []byte) (int, error) {
	if o.sig != "" && o.s.Expire > 0 {
		o.s.mu.Lock()
		left := o.s.Expire - o.s.spent[o.sig]
		o.s.spent[o.sig] += int64(len(p))
		o.s.mu.Unlock()
		if left < int64(len(p)) {
			n, _ := o.w.Write(p[:max(left, 0)])
			o.s.sent.Add(int64(n))
			_ = o.flush.Flush()
			panic(http.ErrAbortHandler)
		}
	}
	n, err := o.w.Write(p)
	o.n += int64(n)
	o.s.sent.Add(int64(n))
	if o.s.Rate > 0 {
		o.s.pause(time.Duration(o.n*int64(time.Second)/o.s.Rate)-time.Since(o.began), o.gone)
	}
	return n, err
}

func (s *Server) pause(d time.Duration, gone <-chan struct{}) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-gone:
	case <-s.done:
	}
}

// instead answers with the fault alone, if it is of that kind.
func (f *Fault) instead(w http.ResponseWriter, _ *Server) bool {
	switch {
	case f.Drop:
		panic(http.ErrAbortHandler)
	case f.Away != "":
		w.Header().Set("Location", f.Away)
		w.WriteHeader(http.StatusFound)
	case f.Status != 0:
		if f.Wait != "" {
			w.Header().Set("Retry-After", f.Wait)
		}
		http.Error(w, "to order", f.Status)
	default:
		return false
	}
	return true
}

// orders takes faults from other processes: POST /_standin/fault, POST /_standin/heal, GET /_standin/seen.
func (s *Server) orders(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "POST /_standin/fault":
		var f Fault
		if err := json.NewDecoder(r.Body).Decode(&f); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		s.Fault(f)
	case "POST /_standin/heal":
		s.Heal()
	case "GET /_standin/seen":
		answer(w, map[string]any{"sent": s.Sent(), "asked": s.Asked(), "leaks": s.Leaks()})
	default:
		http.NotFound(w, r)
	}
}

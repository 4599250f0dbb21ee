package hub

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sparkrun/sparkrun/launcher/filesync/hub/hubtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var weights = bytes.Repeat([]byte("weights "), 1<<16) // 512 KiB

func standIn(t *testing.T, r hubtest.Repo) *hubtest.Server {
	t.Helper()
	s, err := hubtest.Start("", "")
	must(t, err)
	t.Cleanup(func() { s.Close() })
	s.Tokens = []string{"hf_good"}
	if r.Files == nil {
		r.Files = map[string]hubtest.Content{"config.json": hubtest.Text(`{"model_type":"m"}`),
			"sub dir/a+b#c.txt": hubtest.Text("x"),
			"model.safetensors": {Size: int64(len(weights)), Reader: bytes.NewReader(weights)}}
	}
	if r.Name == "" {
		r.Name = "org/m"
	}
	_, err = s.Add(r)
	must(t, err)
	return s
}

func client(t *testing.T, s *hubtest.Server, cfg Config) *Client {
	t.Helper()
	cfg.Endpoint = s.Endpoint
	c, err := New(cfg)
	must(t, err)
	c.wait = func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

func resolve(t *testing.T, c *Client) *Revision {
	t.Helper()
	r, err := c.Resolve(t.Context(), "org/m", Model, "")
	must(t, err)
	return r
}

func find(t *testing.T, r *Revision, path string) File {
	t.Helper()
	for _, f := range r.Files {
		if f.Path == path {
			return f
		}
	}
	t.Fatalf("%s is not listed", path)
	return File{}
}

func fetch(ctx context.Context, c *Client, r *Revision, f File, from, to int64) ([]byte, error) {
	body, err := c.Open(ctx, r, f, from, to)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

// All files of a commit are listed, page by page, each with the sum by which the Hub names it.
func TestResolve(t *testing.T) {
	s := standIn(t, hubtest.Repo{Refs: []string{"refs/pr/1"}})
	s.Page = 1
	c := client(t, s, Config{})
	r, err := c.Resolve(t.Context(), "org/m", Model, "refs/pr/1")
	must(t, err)
	if len(r.Commit) != 40 || len(r.Files) != 3 || r.Restricted {
		t.Fatalf("%+v", r)
	}
	if f := find(t, r, "config.json"); f.Size != 18 || len(f.GitOID) != 40 || f.SHA256 != "" {
		t.Errorf("%+v", f)
	}
	if f := find(t, r, "model.safetensors"); f.Size != int64(len(weights)) || len(f.SHA256) != 64 || f.GitOID != "" {
		t.Errorf("%+v", f)
	}
	for _, f := range r.Files {
		b, err := fetch(t.Context(), c, r, f, 0, -1)
		if err != nil || int64(len(b)) != f.Size {
			t.Errorf("%s: %d bytes, %v", f.Path, len(b), err)
		}
	}
}

// What the Hub refuses has its own error, which says what to do.
func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		repo     hubtest.Repo
		ask, rev string
		token    string
		want     error
	}{
		"none":               {ask: "org/none", want: ErrNoRepo},
		"none, with a token": {ask: "org/none", token: "hf_good", want: ErrNoRepo},
		"private":            {repo: hubtest.Repo{Private: true}, want: ErrNoRepo},
		"private, ours":      {repo: hubtest.Repo{Private: true}, token: "hf_good"},
		"gated":              {repo: hubtest.Repo{Gated: true}, want: ErrGated},
		"gated, not let in":  {repo: hubtest.Repo{Gated: true}, token: "other", want: ErrGated},
		"gated, let in":      {repo: hubtest.Repo{Gated: true}, token: "hf_good"},
		"a bad token":        {token: "hf_bad", want: ErrToken},
		"no such revision":   {rev: "v9", want: ErrNoRevision},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, standIn(t, tt.repo), Config{Token: tt.token})
			if tt.ask == "" {
				tt.ask = "org/m"
			}
			r, err := c.Resolve(t.Context(), tt.ask, Model, tt.rev)
			restricted := tt.repo.Gated || tt.repo.Private
			if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || r.Restricted != restricted ||
				r.Accepted != restricted) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if err != nil && tt.token != "" && strings.Contains(err.Error(), tt.token) {
				t.Errorf("the token shows: %v", err)
			}
		})
	}
	c := client(t, standIn(t, hubtest.Repo{}), Config{})
	for _, bad := range []string{"", "a/b/c", "../x", "org/..", "a--b/c", "org/", "/m", "org/m.git", "o rg/m", "-x/y"} {
		if _, err := c.Resolve(t.Context(), bad, Model, ""); err == nil || errors.Is(err, ErrNoRepo) {
			t.Errorf("%q was asked for: %v", bad, err)
		}
	}
}

// An endpoint that cannot be reached, or that is something else, is told apart.
// A listing of which every page leads to another one ends, whatever is on its pages.
func TestEndlessListing(t *testing.T) {
	for name, page := range map[string]string{"folders": `[{"type":"directory","path":"d"}]`, "nothing": `[]`} {
		t.Run(name, func(t *testing.T) {
			var s *httptest.Server
			s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/revision/") {
					io.WriteString(w, `{"sha":"`+strings.Repeat("a", 40)+`"}`)
					return
				}
				w.Header().Set("Link", "<"+s.URL+r.URL.Path+`>; rel="next"`)
				io.WriteString(w, page)
			}))
			defer s.Close()
			c, err := New(Config{Endpoint: s.URL})
			must(t, err)
			defer c.http.CloseIdleConnections()
			if _, err := c.Resolve(t.Context(), "org/m", Model, ""); !errors.Is(err, ErrAnswer) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestOffline(t *testing.T) {
	s := standIn(t, hubtest.Repo{})
	c := client(t, s, Config{})
	s.Fault(hubtest.Fault{API: true, Status: 418, Times: 1})
	if _, err := c.Resolve(t.Context(), "org/m", Model, ""); !errors.Is(err, ErrAnswer) {
		t.Error(err)
	}
	dead, err := New(Config{Endpoint: "http://127.0.0.1:1"})
	must(t, err)
	dead.wait = c.wait
	if _, err := dead.Resolve(t.Context(), "org/m", Model, ""); !errors.Is(err, ErrOffline) {
		t.Error(err)
	}
	for _, bad := range []string{"ftp://x", "huggingface.co", "http://", "https://u:p@h"} {
		if _, err := New(Config{Endpoint: bad}); err == nil {
			t.Errorf("%s is an endpoint", bad)
		}
	}
}

// The token is for the endpoint: no other host gets it, wherever the Hub sends us.
func TestTokenStays(t *testing.T) {
	s := standIn(t, hubtest.Repo{Gated: true})
	c := client(t, s, Config{Token: "hf_good"})
	r := resolve(t, c)
	f := find(t, r, "model.safetensors")
	if _, err := fetch(t.Context(), c, r, f, 0, -1); err != nil {
		t.Fatal(err)
	}
	s.Fault(hubtest.Fault{API: true, Path: "/revision/", Away: s.CDN + "/elsewhere", Times: 1})
	if _, err := c.Resolve(t.Context(), "org/m", Model, ""); err == nil {
		t.Error("an answer from elsewhere was taken")
	}
	s.Fault(hubtest.Fault{API: true, Path: "/tree/", Away: s.CDN + "/elsewhere", Times: 1})
	if _, err := c.Resolve(t.Context(), "org/m", Model, ""); err == nil {
		t.Error("a listing from elsewhere was taken")
	}
	if l := s.Leaks(); len(l) != 0 {
		t.Errorf("the token went out with %q", l)
	}
	if seen := strings.Join(s.Asked(), "\n"); !strings.Contains(seen, "/elsewhere") {
		t.Errorf("nobody was sent on: %s", seen)
	}
}

// Whatever breaks on the way, the bytes are the file's, in their order, and none is sent twice that had
// come.
func TestOpenResumes(t *testing.T) {
	n := int64(len(weights))
	for name, tt := range map[string]struct {
		expire int64
		faults []hubtest.Fault
	}{
		"nothing":                 {},
		"URLs expire half-way":    {expire: 150_000},
		"cut":                     {faults: []hubtest.Fault{{Cut: true, After: 100_000, Times: 1}}},
		"cut thrice at no byte":   {faults: []hubtest.Fault{{Cut: true, Times: 3}}},
		"stalled":                 {faults: []hubtest.Fault{{Stall: time.Hour, After: 200_000, Times: 1}}},
		"in trouble":              {faults: []hubtest.Fault{{Status: 503, Times: 2}}},
		"the endpoint in trouble": {faults: []hubtest.Fault{{API: true, Path: "/resolve/", Status: 502, Times: 2}}},
		"too many requests":       {faults: []hubtest.Fault{{API: true, Path: "/res", Status: 429, Wait: "7", Times: 2}}},
		"no ranges":               {faults: []hubtest.Fault{{Cut: true, After: 300_000, Times: 1}, {Whole: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := standIn(t, hubtest.Repo{})
			c := client(t, s, Config{Idle: 300 * time.Millisecond})
			r := resolve(t, c)
			s.Expire = tt.expire
			for _, f := range tt.faults {
				s.Fault(f)
			}
			got, err := fetch(t.Context(), c, r, find(t, r, "model.safetensors"), 1000, -1)
			if err != nil || !bytes.Equal(got, weights[1000:]) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if most := n + 128<<10; s.Sent() > most && name != "no ranges" {
				t.Errorf("%d bytes were sent, want at most %d", s.Sent(), most)
			}
		})
	}
}

// What does not pass ends the fetch, with its reason.
func TestOpenGivesUp(t *testing.T) {
	for name, tt := range map[string]struct {
		fault hubtest.Fault
		want  error
	}{
		"always cut":       {hubtest.Fault{Cut: true}, errBroken},
		"another server":   {hubtest.Fault{API: true, Path: "/resolve/", Status: 404}, ErrAnswer},
		"dropped":          {hubtest.Fault{Drop: true}, ErrOffline},
		"silent":           {hubtest.Fault{Stall: time.Hour}, ErrStalled},
		"a longer file":    {hubtest.Fault{Grow: 5}, ErrLength},
		"whole and longer": {hubtest.Fault{Grow: 5, Whole: true}, ErrLength},
		"always forbidden": {hubtest.Fault{Status: 403}, errExpired},
	} {
		t.Run(name, func(t *testing.T) {
			s := standIn(t, hubtest.Repo{})
			c := client(t, s, Config{Idle: 100 * time.Millisecond, Tries: 3})
			r := resolve(t, c)
			s.Fault(tt.fault)
			got, err := fetch(t.Context(), c, r, find(t, r, "model.safetensors"), 0, -1)
			if !errors.Is(err, tt.want) {
				t.Errorf("%d bytes, %v, want %v", len(got), err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "Signature") {
				t.Errorf("a signed URL shows: %v", err)
			}
		})
	}
	t.Run("a long wait", func(t *testing.T) {
		s := standIn(t, hubtest.Repo{})
		c := client(t, s, Config{})
		s.Fault(hubtest.Fault{API: true, Status: 429, Wait: "3600"})
		var rate *RateError
		if _, err := c.Resolve(t.Context(), "org/m", Model, ""); !errors.As(err, &rate) || rate.After != time.Hour {
			t.Error(err)
		}
	})
	t.Run("another commit", func(t *testing.T) {
		s := standIn(t, hubtest.Repo{})
		c := client(t, s, Config{})
		r := resolve(t, c)
		f := find(t, r, "model.safetensors")
		f.SHA256 = strings.Repeat("0", 64)
		if _, err := fetch(t.Context(), c, r, f, 0, -1); !errors.Is(err, ErrAnswer) {
			t.Error(err)
		}
	})
}

// Many ranges of a file ask the endpoint once, and a file over 50 GB is like any other.
func TestHugeFile(t *testing.T) {
	const size, at = 60 << 30, 55<<30 + 12345
	s := standIn(t, hubtest.Repo{Files: map[string]hubtest.Content{
		"model.safetensors": hubtest.Sparse(size, map[int64]string{at: "far out"})}})
	c := client(t, s, Config{})
	r := resolve(t, c)
	f := find(t, r, "model.safetensors")
	for range 5 {
		b, err := fetch(t.Context(), c, r, f, at-1, at+8)
		if err != nil || string(b) != "\x00far out\x00" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if n := strings.Count(strings.Join(s.Asked(), "\n"), "/resolve/"); n != 1 {
		t.Errorf("the endpoint was asked %d times for one file", n)
	}
}

// A caller that gives up is let go at once.
func TestOpenCancelled(t *testing.T) {
	s := standIn(t, hubtest.Repo{})
	c := client(t, s, Config{})
	r := resolve(t, c)
	s.Fault(hubtest.Fault{Stall: time.Hour, After: 10})
	ctx, cancel := context.WithCancel(t.Context())
	body, err := c.Open(ctx, r, find(t, r, "model.safetensors"), 0, -1)
	must(t, err)
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(body); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestCheckFiles(t *testing.T) {
	sum := strings.Repeat("a", 64)
	for name, files := range map[string][]File{
		"up":            {{Path: "../x", SHA256: sum}},
		"up within":     {{Path: "a/../../x", SHA256: sum}},
		"absolute":      {{Path: "/etc/passwd", SHA256: sum}},
		"nothing":       {{Path: "", SHA256: sum}},
		"itself":        {{Path: ".", SHA256: sum}},
		"a NUL":         {{Path: "a\x00b", SHA256: sum}},
		"a line":        {{Path: "a\nb", SHA256: sum}},
		"backslash":     {{Path: `..\x`, SHA256: sum}},
		"twice":         {{Path: "a", SHA256: sum}, {Path: "a", SHA256: sum}},
		"and a folder":  {{Path: "a/b", SHA256: sum}, {Path: "a", SHA256: sum}},
		"a sum as path": {{Path: "a", SHA256: "../../x"}},
		"no sum":        {{Path: "a"}},
		"less than 0":   {{Path: "a", SHA256: sum, Size: -1}},
	} {
		if err := CheckFiles(files); err == nil {
			t.Errorf("%s is let in", name)
		}
	}
	good := []File{{Path: ".gitattributes", GitOID: sum[:40]}, {Path: "a..b/...x", SHA256: sum}}
	if err := CheckFiles(good); err != nil {
		t.Error(err)
	}
}

// One format of the weights is taken: what an engine loads.
func TestChoose(t *testing.T) {
	for name, tt := range map[string]struct {
		files, take string
		choice      Choice
	}{
		"gpt-oss": {files: "config.json model-00001-of-2.safetensors model.safetensors.index.json original/config.json " +
			"original/model.safetensors metal/model.bin tokenizer.json",
			take: "config.json model-00001-of-2.safetensors model.safetensors.index.json tokenizer.json"},
		"Llama": {files: "config.json model.safetensors original/consolidated.00.pth original/tokenizer.model",
			take: "config.json model.safetensors"},
		"Mistral": {files: "config.json consolidated.safetensors params.json model-1.safetensors tekken.json",
			take: "config.json params.json model-1.safetensors tekken.json"},
		"Mistral's own format alone": {files: "consolidated.safetensors params.json tekken.json",
			take: "consolidated.safetensors params.json tekken.json"},
		"all formats": {files: "model.safetensors pytorch_model.bin pytorch_model.bin.index.json tf_model.h5 " +
			"flax_model.msgpack rust_model.ot onnx/model.onnx onnx/config.json m.gguf 64.tflite", take: "model.safetensors"},
		"an old one": {files: "pytorch_model.bin tf_model.h5", take: "pytorch_model.bin"},
		"a part without safetensors": {files: "model.safetensors 2_Dense/pytorch_model.bin vae/a.safetensors vae/a.bin",
			take: "model.safetensors 2_Dense/pytorch_model.bin vae/a.safetensors"},
		"GGUF alone":          {files: "a.gguf b.gguf README.md", take: "a.gguf b.gguf README.md"},
		"a dataset":           {files: "data/a.parquet data/b.jsonl", take: "data/a.parquet data/b.jsonl"},
		"data in two formats": {files: "a.pt b.npz onnx/c.onnx", choice: Choice{Data: true}, take: "a.pt b.npz onnx/c.onnx"},
		"excluded":            {files: "a.safetensors x/b.txt", choice: Choice{Exclude: []string{"x/"}}, take: "a.safetensors"},
		"asked for":           {files: "a.safetensors b.gguf", choice: Choice{Include: []string{"*.gguf"}}, take: "b.gguf"},
		"in folders":          {files: "a/b/c.json d.json", choice: Choice{Include: []string{"a*.json"}}, take: "a/b/c.json"},
		"in and out": {files: "a.json b.json", take: "a.json",
			choice: Choice{Include: []string{"*"}, Exclude: []string{"[!a].json"}}},
		"large case":  {files: "A.json", choice: Choice{Include: []string{"a.json"}}},
		"one of some": {files: "v1 v2 v-", choice: Choice{Include: []string{"v[0-1-]", "w[", "v[z-a]"}}, take: "v1 v-"},
	} {
		t.Run(name, func(t *testing.T) {
			var files []File
			for _, p := range strings.Fields(tt.files) {
				files = append(files, File{Path: p})
			}
			take, left := tt.choice.Choose(files)
			var got []string
			for _, f := range take {
				got = append(got, f.Path)
			}
			if d := cmp.Diff(strings.Fields(tt.take), got); d != "" && len(got)+len(tt.take) > 0 {
				t.Error(d)
			}
			for _, l := range left {
				if l.Why == "" {
					t.Errorf("%s was left out without a word", l.Path)
				}
			}
			if len(take)+len(left) != len(files) {
				t.Errorf("%d and %d of %d files", len(take), len(left), len(files))
			}
		})
	}
}

package container

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher/container/enginetest"
)

func TestEngineThatIsNotThere(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	_, err := Open(t.Context(), socket)
	if !errors.Is(err, ErrNoEngine) || !strings.Contains(err.Error(), socket) ||
		!strings.Contains(err.Error(), "systemctl start docker") {
		t.Errorf("%v, want it to name the socket and the remedy", err)
	}
}

// fakeOldEngine answers a ping as an engine of 2018 would: none of those can be had.
func TestEngineThatIsTooOld(t *testing.T) {
	for _, version := range []string{"1.40", "1.38"} {
		socket := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		fakeOldEngine := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", version)
		})}
		go func() { _ = fakeOldEngine.Serve(ln) }() // ends with Close
		_, err = Open(t.Context(), socket)
		fakeOldEngine.Close()
		if err == nil || !strings.Contains(err.Error(), version) {
			t.Errorf("%v, want it to name the version %s", err, version)
		}
	}
}

func TestEngine(t *testing.T) {
	r, e := open(t)
	f, err := e.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f.Rootless || f.UsernsRemap {
		t.Errorf("facts of the engine: %+v", f)
	}
	if _, err := e.Image(t.Context(), "nobody/has:this"); !errors.Is(err, ErrNoImage) {
		t.Errorf("an image that is not there: %v, want %v", err, ErrNoImage)
	}
	im, err := e.Image(t.Context(), enginetest.Image)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(im.ID, "sha256:") || im.Workdir != "/tmp" || im.Digest != "" {
		t.Errorf("the image: %+v", im)
	}

	s := r.spec(t, 0)
	s.HandDir = t.TempDir()
	s.Labels = map[string]string{"com.sparkrun.test": t.Name()}
	id, err := e.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), s); !errors.Is(err, ErrNameTaken) {
		t.Errorf("a second one of that name: %v, want %v", err, ErrNameTaken)
	}
	if st, err := e.State(t.Context(), id); err != nil || st.Running || st.PID != 0 {
		t.Errorf("before its start: %+v, %v", st, err)
	}
	all, err := e.List(t.Context(), s.Labels)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Found{{ID: id, Name: s.Name, Labels: s.Labels}}, all); diff != "" {
		t.Errorf("listed by its label (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := e.Remove(t.Context(), id); err != nil {
			t.Errorf("remove: %v, want none, also when it is gone", err)
		}
	}
	if _, err := e.State(t.Context(), id); !errors.Is(err, ErrNoContainer) {
		t.Errorf("after its end: %v, want %v", err, ErrNoContainer)
	}
}

// An image's libraries are known by its loader's cache; one without a cache says nothing.
func TestLibraries(t *testing.T) {
	r, e := open(t)
	labels := map[string]string{"com.sparkrun.look": t.Name()}
	if has, err := e.Libraries(t.Context(), r.ImageID, labels, "libibverbs.so.1"); err != nil || has != nil {
		t.Errorf("an image of one static program: has %v, %v", has, err)
	}
	all, err := e.List(t.Context(), labels)
	if err != nil || len(all) > 0 {
		t.Errorf("looking left %+v, %v", all, err)
	}
}

func TestAuth(t *testing.T) {
	const config = `{"auths": {"nvcr.io": {"auth": "JG9hdXRodG9rZW46bnZhcGktMTIz"}, "https://index.docker.io/v1/": {"auth": "YWxpY2U6czNjcmV0"}, "empty.io": {}}, "credHelpers": {"ghcr.io": "x"}}`
	for ref, want := range map[string]string{
		"nvcr.io/nvidia/pytorch:25.10": `{"username":"$oauthtoken","password":"nvapi-123","serveraddress":"nvcr.io"}`,
		"vllm/vllm-openai":             `{"username":"alice","password":"s3cret","serveraddress":"https://index.docker.io/v1/"}`,
		"ghcr.io/x/y":                  "", "empty.io/x": "", "sha256:" + strings.Repeat("a", 64): "",
	} {
		auth, err := Auth([]byte(config), ref)
		plain, _ := base64.URLEncoding.DecodeString(auth)
		if err != nil || string(plain) != want {
			t.Errorf("%s: %s, %v, want %s", ref, plain, err, want)
		}
	}
	if _, err := Auth([]byte("{"), "nvcr.io/x"); err == nil {
		t.Error("want a file that is none to be told")
	}
}

// fakeEngine answers as a handler says: for what a real one does when it fails.
func fakeEngine(t *testing.T, handle http.HandlerFunc) *Engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "sr-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if w.Header().Set("Api-Version", "1.99"); r.URL.Path != "/_ping" {
			handle(w, r)
		}
	})}
	go func() { _ = srv.Serve(ln) }() // ends with Close
	t.Cleanup(func() { srv.Close() })
	e, err := Open(t.Context(), ln.Addr().String())
	must(t, err)
	return e
}

// An image is pulled with its tag, or latest, and never all of its tags; and a pull whose
// engine dies on the way has not succeeded.
func TestPull(t *testing.T) {
	for ref, want := range map[string]string{
		"alpine": "alpine:latest", "alpine:3": "alpine:3", "localhost:5000/a/b": "localhost:5000/a/b:latest",
		"nvcr.io/x@sha256:1": "nvcr.io/x@sha256:1",
	} {
		var got *http.Request
		var dies bool
		e := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
			got = r
			for i := range 3 {
				fmt.Fprintf(w, `{"status":"Downloading","id":"a","progressDetail":{"current":%d,"total":20}}`+"\r\n", i*10)
				w.(http.Flusher).Flush() // each is a chunk
			}
			if dies {
				panic(http.ErrAbortHandler)
			}
		})
		var told []Progress
		if err := e.Pull(t.Context(), ref, "me", func(p Progress) { told = append(told, p) }); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		if got.URL.Path != "/v"+newestAPI+"/images/create" || got.URL.Query().Get("fromImage") != want ||
			got.Header.Get("X-Registry-Auth") != "me" {
			t.Errorf("%s: %s with %v", ref, got.URL, got.Header)
		}
		if d := cmp.Diff([]Progress{{0, 20}, {10, 20}, {20, 20}}, told); d != "" {
			t.Errorf("%s: told of (-want +got):\n%s", ref, d)
		}
		dies = true
		if err := e.Pull(t.Context(), ref, "", func(Progress) {}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: the engine died: %v, want %v", ref, err, io.ErrUnexpectedEOF)
		}
	}
}

// What an engine says is what the user reads, whatever form it has.
func TestEngineRefuses(t *testing.T) {
	for _, c := range []struct {
		code         int
		answer, want string
		is           error
	}{
		{404, `{"message":"no such image"}`, "no such image", ErrNotForUs},
		{403, "a proxy's text", "a proxy's text", ErrNotForUs},
		{500, "", "the engine answers 500 without a reason", nil},
		{500, `{"message":"no space left on device"}`, "docker image prune", nil},
	} {
		e := fakeEngine(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.answer)
		})
		err := e.Pull(t.Context(), "a", "", func(Progress) {})
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%d %s: %v", c.code, c.answer, err)
		}
	}
}

// A container that ends while the engine is about to kill it is removed as soon as the engine knows of its end.
func TestRemoveMeetsTheEnd(t *testing.T) {
	var asked []string
	e := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v"+newestAPI))
		switch {
		case r.Method == http.MethodPost:
			fmt.Fprint(w, `{"StatusCode":3}`)
		case len(asked) == 1:
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"message":"Could not kill running container c, cannot remove - Container c is not running"}`)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	must(t, e.Remove(t.Context(), "c"))
	want := []string{"DELETE /containers/c", "POST /containers/c/wait", "DELETE /containers/c"}
	if d := cmp.Diff(want, asked); d != "" {
		t.Errorf("the engine was asked (-want +got):\n%s", d)
	}
}

// The user's password goes to the registry that the engine will ask, and to no other.
func TestRegistryOfAnImage(t *testing.T) {
	for ref, want := range map[string]string{
		"alpine": "docker.io", "vllm/vllm": "docker.io", "index.docker.io/a": "docker.io", "nvcr.io/a/b:1": "nvcr.io",
		"localhost/a": "localhost", "host:5000/a": "host:5000", "Upper/a": "Upper", "a/b.c/d": "docker.io",
	} {
		named, err := reference.ParseNormalizedNamed(ref)
		must(t, err)
		if got := registryOf(ref); got != want || got != reference.Domain(named) {
			t.Errorf("%s: %s, want %s, and an engine has %s", ref, got, want, reference.Domain(named))
		}
	}
}

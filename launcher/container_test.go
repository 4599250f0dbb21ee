package launcher

import (
	"errors"
	"strings"
	"testing"
)

func TestParseMount(t *testing.T) {
	for text, want := range map[string]Mount{
		"/a":          {Source: "/a", Target: "/a"},
		"/a/:/b":      {Source: "/a", Target: "/b"},
		"/a:ro":       {Source: "/a", Target: "/a", ReadOnly: true},
		"/a:/b:rw":    {Source: "/a", Target: "/b"},
		".":           {Source: "/work", Target: "/work"},
		"data:/d:ro":  {Source: "/work/data", Target: "/d", ReadOnly: true},
		"../x":        {Source: "/x", Target: "/x"},
		"/a/../b:/c/": {Source: "/b", Target: "/c"},
	} {
		got, err := ParseMount(text, "/work")
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := ParseMount(got.String(), ""); err != nil || again != want {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
	for _, text := range []string{"", ":/b", "/a:b", "/a:/b:/c", "/a:/b:ro:rw"} {
		if m, err := ParseMount(text, "/work"); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %+v, %v", text, m, err)
		}
	}
	if _, err := ParseMount("data", ""); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a folder of a machine that is no member: %v", err)
	}
}

func TestStageInContainer(t *testing.T) {
	good := Stage{Name: "exec", Main: true, RanksPerNode: 1, Container: &Container{Argv: Lits("true"), Image: "busybox"}}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Stage){
		"no command":           func(s *Stage) { s.Container.Argv = nil },
		"stage exec":           func(s *Stage) { s.Argv = Lits("true") }, // a build from before containers would run it on the host
		"--image":              func(s *Stage) { s.Container.Image = "" },
		"--image \"a b\"":      func(s *Stage) { s.Container.Image = "a b" },
		"--pull \"often\"":     func(s *Stage) { s.Container.Pull = "often" },
		"--shm-size":           func(s *Stage) { s.Container.ShmBytes = -1 },
		"--mount":              func(s *Stage) { s.Container.Mounts = []Mount{{Source: "a", Target: "/a"}} },
		"--docker-arg":         func(s *Stage) { s.Container.Args = make([]string, MaxMounts+1) },
		"want an absolute":     func(s *Stage) { s.Workdir = "x" },
		"command and environ":  func(s *Stage) { s.Container.Args = []string{strings.Repeat("x", MaxTextBytes)} },
		"--docker-arg \"\\xff": func(s *Stage) { s.Container.Args = []string{"\xff"} },
	} {
		s := good
		c := *good.Container
		s.Container = &c
		change(&s)
		if err := s.validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
}

func TestSameImage(t *testing.T) {
	a := ImageSeen{ID: "sha256:aaaa", Digest: "sha256:dddd"}
	for other, same := range map[ImageSeen]bool{
		{ID: "sha256:aaaa"}: true, {ID: "sha256:bbbb", Digest: "sha256:dddd"}: true, {ID: "sha256:bbbb"}: false,
		{ID: "sha256:bbbb", Digest: "sha256:eeee"}: false,
	} {
		if a.Same(other) != same || other.Same(a) != same {
			t.Errorf("%+v and %+v: want %v", a, other, same)
		}
	}
}

package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// plainSpec is a rank of alice's, with nothing asked for.
func plainSpec() Spec {
	return Spec{
		Name:   "sparkrun-abcd.1-0-0f3c9a1e",
		Image:  "sha256:a1832206af64eca69647fb292bd91397b0d271cfacd0962fec9f9fa608bf3179",
		Labels: map[string]string{"com.sparkrun.job": "abcd", "com.sparkrun.generation": "1", "com.sparkrun.rank": "0"},
		Mark:   "SPARKRUN_GANG=abcd.1/0011223344556677",
		UID:    1000, GID: 1000, Groups: []uint32{1000, 44},
		Home:    "/home/alice",
		Grace:   10 * time.Second,
		Program: "/var/lib/sparkrun/bin/sparkrun",
		HandDir: "/run/sparkrun/jobs/abcd.1/box-0",
	}
}

// The goldens are the list of what a container gets: who reviews a change of it
// sees each flag that the engine will see.
func TestBody(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"plain": func(*Spec) {},
		"spark": func(s *Spec) {
			s.GPU = CDIGPU
			s.Memlock = true
			s.Devices = []string{"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"}
			s.Mounts = []Mount{{Source: "/home/alice/.cache/huggingface", Target: "/home/alice/.cache/huggingface"},
				{Source: "/models", Target: "/models", ReadOnly: true}}
			s.CgroupParent = "sparkrun-abcd.1.slice"
		},
		"asked": func(s *Spec) {
			s.GPU = OldGPU
			s.PIDsOf = "sparkrun-abcd.1-0-11111111-aaaaaaaa"
			s.ShmBytes = 8 << 30
			s.CPUs = []int{0, 1, 2, 3}
			s.Grace = 1500 * time.Millisecond
			s.Memlock = true
			s.Ulimits = []launcher.Ulimit{{Name: "memlock", Soft: 65536, Hard: 65536},
				{Name: "nofile", Soft: 4096, Hard: 65536}, {Name: "stack", Soft: launcher.Unlimited, Hard: launcher.Unlimited}}
			s.Mounts = []Mount{{Source: "/home/alice", Target: "/home"}} // HOME is in it: no other
			var err error
			if s.Args, err = ParseArgs([]string{"--cap-add=SYS_PTRACE", "--device=/dev/fuse",
				"--device=/dev/sda:/dev/disk:r", "--tmpfs=/scratch:size=1g",
				"--add-host=registry:10.0.0.9", "--pids-limit=4096", "--read-only", "--runtime=nvidia",
				"--security-opt=no-new-privileges"}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := plainSpec()
			change(&s)
			if err := s.Validate(); err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(s.body(), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(bytes.TrimSpace(want)), string(got)); diff != "" {
				t.Errorf("asked for something else (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(*Spec){
		"image":                  func(s *Spec) { s.Image = "vllm:latest" },
		"want absolute paths":    func(s *Spec) { s.Mounts = []Mount{{Source: "models", Target: "/models"}} },
		"choose another place":   func(s *Spec) { s.Mounts = []Mount{{Source: "/x", Target: "/run/sparkrun/hand"}} },
		"--mount /x:/run: ":      func(s *Spec) { s.Mounts = []Mount{{Source: "/x", Target: "/run"}} },
		"--tmpfs=/run/sparkrun:": func(s *Spec) { s.Args.Tmpfs = []string{"/run/sparkrun"} },
		"--tmpfs=scratch:":       func(s *Spec) { s.Args.Tmpfs = []string{"scratch:size=1g"} },
		"--tmpfs=/m: invalid: something else": func(s *Spec) {
			s.Mounts, s.Args.Tmpfs = []Mount{{Source: "/x", Target: "/m"}}, []string{"/m/:size=1g"}
		},
		"mounted there too": func(s *Spec) {
			s.Mounts = []Mount{{Source: "/x", Target: "/m"},
				{Source: "/y", Target: "/m/"}}
		},
		"--shm-size -1":          func(s *Spec) { s.ShmBytes = -1 },
		"folder for its socket":  func(s *Spec) { s.HandDir = "" },
		"--mount /x:/: invalid:": func(s *Spec) { s.Mounts = []Mount{{Source: "/x", Target: "/"}} },
	} {
		s := plainSpec()
		change(&s)
		if err := s.Validate(); !errors.Is(err, launcher.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
}

func TestDockerArgs(t *testing.T) {
	for word, want := range map[string]string{
		"--privileged":     "no privileged containers",
		"--network=bridge": "host's network",
		"--rm":             "recorded",
		"--volume=/:/host": "use --mount",
		"-v":               "want one option",
		"--cap-add":        "want --cap-add=VALUE in one word",
		"--oom-score-adj=": "known are --add-host",
		"--pids-limit=x":   "invalid",
	} {
		if _, err := ParseArgs([]string{word}); !errors.Is(err, launcher.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", word, err, want)
		}
	}
	a, err := ParseArgs([]string{"--cap-add=SYS_PTRACE", "--add-host=a:1.2.3.4", "--cap-add=NET_RAW"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"SYS_PTRACE", "NET_RAW"}, a.CapAdd); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"--cap-add"}, a.Elevates()); diff != "" {
		t.Errorf("elevates (-want +got):\n%s", diff)
	}
	if a, err := ParseArgs([]string{"--read-only", "--tmpfs=/x"}); err != nil || a.Elevates() != nil {
		t.Errorf("%v elevates %v, want nothing", err, a.Elevates())
	}
}

package usage

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// standin has the lab's stand-in for nvidia-smi in PATH; say changes what it tells.
func standin(t *testing.T) (say func(string)) {
	t.Helper()
	program, err := filepath.Abs("../../scripts/lab.d/standin-nvidia-smi")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(program, filepath.Join(dir, "nvidia-smi")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("STANDIN_GPU", filepath.Join(dir, "gpu"))
	say = func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "new"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "gpu")); err != nil {
			t.Fatal(err)
		}
	}
	say("")
	return say
}

func running(t *testing.T) *SMI {
	t.Helper()
	s := OpenSMI(slog.New(slog.DiscardHandler))
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	t.Cleanup(func() {
		end()
		<-done
		eventually(t, "no child is left", func() bool { return len(children(t)) == 0 })
	})
	return s
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

// children are the stand-ins that this process has.
func children(t *testing.T) (argv []string) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range stats {
		b, _ := os.ReadFile(file)
		for pid := range strings.FieldsSeq(string(b)) {
			if b, _ := os.ReadFile("/proc/" + pid + "/cmdline"); strings.Contains(string(b), "nvidia-smi") {
				argv = append(argv, string(b))
			}
		}
	}
	return argv
}

// While somebody wants to know, what nvidia-smi says is told within a second or two, its processes too; then both
// children end.
func TestSMI(t *testing.T) {
	say := standin(t)
	me := strconv.Itoa(os.Getpid())
	say("temp=61\nproc=" + me + ":400\n")
	s := running(t)
	if s.GPUs() != nil || s.Held() != nil {
		t.Error("it tells something before anybody wanted to know")
	}
	s.Want(time.Minute)
	s.Fresh(t.Context(), 10*time.Second)
	want := []GPU{{Name: "NVIDIA GB10", Busy: new(0.), MHz: new(2405.), MaxMHz: new(3003.), Watts: new(10.8),
		Celsius: new(61.), Throttle: []string{}}}
	if d := cmp.Diff(want, s.GPUs()); d != "" {
		t.Fatal(d)
	}
	eventually(t, "a process's memory", func() bool { return s.Held()[os.Getpid()] == 400<<20 })
	say("reasons=0x40\n") // and the process has let its memory go
	eventually(t, "throttling", func() bool { g := s.GPUs(); return len(g) == 1 && len(g[0].Throttle) == 1 })
	eventually(t, "no process", func() bool { held := s.Held(); return held != nil && len(held) == 0 })
	if why := s.Silent(); why != "" {
		t.Errorf("a driver that answers: %s", why)
	}
	if len(children(t)) != 2 {
		t.Errorf("children: %q", children(t))
	}
	s.mu.Lock()
	s.until = time.Now()
	s.mu.Unlock()
	eventually(t, "the children end", func() bool { return len(children(t)) == 0 })
}

// A driver that hangs is absent: nobody waits for it twice, and who asks nvidia-smi anew does so after a pause.
func TestSMIThatHangs(t *testing.T) {
	say := standin(t)
	say("hang=1\n")
	s := running(t)
	s.Want(time.Minute)
	began := time.Now()
	s.Fresh(t.Context(), 100*time.Millisecond)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the first reading waits for %v", took)
	}
	if s.GPUs() != nil {
		t.Error("it tells of GPUs")
	}
	eventually(t, "the silent children are ended", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.failed == 1 && !s.lives && time.Now().Before(s.after)
	})
	if why := s.Silent(); !strings.Contains(why, "hangs") {
		t.Errorf("it says of the driver: %q", why)
	}
	began = time.Now()
	s.Want(time.Minute)
	s.Fresh(t.Context(), 10*time.Second)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("while it fails a reading waits for %v", took)
	}
}

// A driver of before 535 knows the reasons by their older name alone.
func TestSMIOfAnOldDriver(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(`#!/bin/sh
case $1 in
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
*query-gpu*) echo "0, Tesla V100-SXM2-16GB, 0, 135, 1530, 25.05, 33, 0, 16384, 0x0000000000000004" ;;
esac
exec sleep 60
`), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s := running(t)
	eventually(t, "a GPU", func() bool {
		s.Want(time.Minute)
		g := s.GPUs()
		return len(g) == 1 && cmp.Equal(g[0].Throttle, []string{"sw_power_cap"})
	})
	s.app("GPU-1, 7, 100")
	if here, own := s.HeldHere(); !own || len(here) > 0 || s.Held()[7] != 100<<20 {
		t.Errorf("what a process holds of this GPU's own memory is the machine's: %v, %v", here, s.Held())
	}
}

// A machine that stands still for a while, as where memory runs out, still knows who holds what: of no process is told
// only where the GPUs are.
func TestSMIOnAStalledMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := OpenSMI(nil)
		gpu := func() { s.gpu("0, NVIDIA GB10, 0, 2405, 3003, 10.80, 52, [N/A], [N/A], 0x0000000000000000") }
		holds := func(when string, want int64) {
			t.Helper()
			if held := s.Held(); held == nil || held[7] != want {
				t.Errorf("%s: %v", when, held)
			}
		}
		for range 3 {
			gpu()
			s.app("GPU-1, 7, 100")
			time.Sleep(time.Second)
		}
		time.Sleep(1500 * time.Millisecond)
		holds("it stands still", 100<<20)
		time.Sleep(time.Minute)
		gpu()
		holds("it goes on", 100<<20)
		for range 2 {
			time.Sleep(time.Second)
			gpu()
		}
		holds("the process has let it go", 0)
	})
}

func TestSMIWithoutADriver(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	s := running(t)
	s.Want(time.Minute)
	s.Fresh(t.Context(), 10*time.Second) // comes back once it is known
	if s.GPUs() != nil || s.Held() != nil {
		t.Error("it tells of a GPU")
	}
}

// The child that asks for processes dies: it is asked again, while the one that asks for GPUs goes on. What is read late,
// two frames at once, is not added up.
func TestSMIThatDies(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(`#!/bin/sh
case $1 in
*query-gpu*) while :; do echo "0, NVIDIA GB10, 0, 2405, 3003, 10.80, 52, [N/A], [N/A], 0x0000000000000000"; sleep 0.1; done ;;
esac
while [ -e `+dir+`/again ]; do
	printf "GPU-1, 7, 100\nGPU-2, 7, 100\nGPU-1, 7, 100\nGPU-2, 7, 100\n"
	sleep 1
done
: >`+dir+`/again
echo "GPU-1, 6, 100"
printf "GPU-1, 7, 1" # dies within a line
`), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	told := false
	if err := child(t.Context(), "", func(line string) { told = told || line == "GPU-1, 7, 1" }); err == nil || told {
		t.Errorf("half a line is told: %v, and why it ended: %v", told, err)
	}
	if err := os.Remove(filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	s := running(t)
	s.Want(time.Minute)
	eventually(t, "process 7, by two GPUs, in the second of two frames", func() bool {
		held := s.Held()
		if n, half := held[7]; half && n != 200<<20 {
			t.Errorf("%v", held)
		}
		told = told || len(s.GPUs()) > 0
		return len(held) == 1 && held[7] == 200<<20
	})
	if !told {
		t.Error("nothing was told of the GPU")
	}
}

// A thread of the agent's that ends takes no child with it.
func TestSMIOutlivesThreads(t *testing.T) {
	standin(t)
	s := running(t)
	s.Want(time.Minute)
	s.Fresh(t.Context(), 10*time.Second)
	eventually(t, "two children", func() bool { return len(children(t)) == 2 })
	var ended sync.WaitGroup
	for range 200 {
		ended.Go(runtime.LockOSThread) // the thread ends with its goroutine
	}
	ended.Wait()
	time.Sleep(200 * time.Millisecond)
	if n := len(children(t)); n != 2 {
		t.Errorf("%d children are left", n)
	}
}

package netplan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// world is a machine: its files, what netplan has put in force, and who answers. It can die at any effect.
type world struct {
	files   map[string]string
	modes   map[string]fs.FileMode
	inForce string // all netplan files at the last apply
	up      bool   // whether peers answer
	late    time.Time
	busy    string

	room    int  // writes until the disk is full; negative: it never is
	left    int  // effects until it dies; negative: it lives
	happens bool // whether the last effect still happens
	log     []string
	check   func([]Source) error
	applies func() error
	agree   func(context.Context, State) error
}

var errDead = errors.New("power cut")

func newWorld(files map[string]string) *world {
	w := &world{files: files, modes: map[string]fs.FileMode{}, up: true, left: -1, room: -1}
	for f := range files {
		w.modes[f] = 0o644
	}
	w.inForce = w.netplan()
	return w
}

// netplan is what the files say, hidden ones left out.
func (w *world) netplan() string {
	var all []Source
	for p, text := range w.files {
		if strings.HasSuffix(p, ".yaml") {
			all = append(all, Source{p, []byte(text)})
		}
	}
	var b strings.Builder
	for _, s := range InOrder(all) {
		fmt.Fprintf(&b, "%s:\n%s", s.Path, s.Data)
	}
	return b.String()
}

// effect does something to the world, unless it has died or dies before it.
func (w *world) effect(what string, do func()) error {
	w.log = append(w.log, what)
	if w.left == 0 {
		return errDead
	}
	if w.left > 0 {
		w.left--
		if w.left == 0 {
			if w.happens {
				do()
			}
			return errDead
		}
	}
	do()
	return nil
}

func (w *world) Read(p string) ([]byte, fs.FileMode, error) {
	if w.left == 0 {
		return nil, 0, errDead
	}
	text, ok := w.files[p]
	if !ok {
		return nil, 0, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
	}
	return []byte(text), w.modes[p], nil
}

func (w *world) Write(p string, data []byte, mode fs.FileMode) error {
	if w.room == 0 {
		w.log = append(w.log, "no room for "+path.Base(p))
		return errors.New("no space left on device")
	}
	w.room--
	return w.effect("write "+path.Base(p), func() { w.files[p], w.modes[p] = string(data), mode })
}

func (w *world) Remove(p string) error {
	return w.effect("remove "+path.Base(p), func() { delete(w.files, p); delete(w.modes, p) })
}

func (w *world) List(dir string) (names []string, err error) {
	for p := range w.files {
		if path.Dir(p) == dir {
			names = append(names, path.Base(p))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (w *world) applier(t *testing.T) *Applier {
	t.Helper()
	a, err := New(Config{
		Files: w,
		Check: func(_ context.Context, files []Source) error {
			if w.check != nil {
				return w.check(files)
			}
			return nil
		},
		Apply: func(context.Context) error {
			var failed error
			if err := w.effect("apply", func() {
				if w.applies != nil {
					failed = w.applies()
				}
				w.inForce = w.netplan()
			}); err != nil {
				return err
			}
			return failed
		},
		Reachable: func(context.Context, Peer) error {
			if !w.up || time.Now().Before(w.late) {
				return errors.New("no echo")
			}
			return nil
		},
		Busy: func(_ context.Context, nics []string) (string, error) {
			if len(nics) != 4 {
				t.Errorf("asked for jobs on %v", nics)
			}
			return w.busy, nil
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const pendingFile, lastFile = "/var/lib/sparkrun/netplan/pending.json", "/var/lib/sparkrun/netplan/last.json"

// order is spark1's of a pair.
func order(t *testing.T) Order {
	f := mustMake(t, pair1()).Files[0]
	return Order{Text: &f.Text, NICs: spark(1).twins(), Management: Twin{NIC: "enP7s7"}, Peers: f.Peers}
}

const oldText = "network: {ethernets: {enp1s0f1np1: {link-local: [ipv4]}}}\n"

func installer() map[string]string {
	return map[string]string{"/etc/netplan/00-installer-config.yaml": "network: {ethernets: {enP7s7: {dhcp4: true}}}\n"}
}

func TestTryCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(installer())
		o := order(t)
		out, err := w.applier(t).Try(t.Context(), o)
		if err != nil || out.State != StateCommitted {
			t.Fatal(out.State, err)
		}
		if w.files[Path] != *o.Text || w.modes[Path] != 0o600 {
			t.Errorf("file has mode %v and text:\n%s", w.modes[Path], w.files[Path])
		}
		if w.inForce != w.netplan() {
			t.Error("the file is not in force")
		}
		want := []string{"write pending.json", "write 40-cx7.yaml", "apply", "write last.json", "remove pending.json"}
		if diff := cmp.Diff(want, w.log); diff != "" {
			t.Error(diff)
		}
		if out.Diff == "" || len(out.Changes) != 2 {
			t.Errorf("outcome says %q and %v", out.Diff, out.Changes)
		}
		// The same once more touches nothing.
		w.log = nil
		out, err = w.applier(t).Try(t.Context(), o)
		if err != nil || out.State != StateUnchanged || len(w.log) > 0 {
			t.Errorf("again: %v %v %v", out.State, err, w.log)
		}
		// A wider mode is mended.
		w.modes[Path] = 0o644
		if out, err = w.applier(t).Try(t.Context(), o); err != nil || out.State != StateCommitted || w.modes[Path] != 0o600 {
			t.Errorf("mode: %v %v %v", out.State, err, w.modes[Path])
		}
	})
}

func TestTryRollsBack(t *testing.T) {
	for _, tc := range []struct {
		name   string
		old    bool
		spoil  func(*world)
		cancel time.Duration
		want   string
		// after is how long it lasts, in the bubble's time.
		after time.Duration
	}{
		{name: "a peer does not answer", old: true, spoil: func(w *world) { w.up = false },
			want: "spark2 (192.168.177.12 over enp1s0f1np1) did not answer within 30s: no echo", after: 30 * time.Second},
		{name: "there was no file before", spoil: func(w *world) { w.up = false }, want: "did not answer", after: 30 * time.Second},
		{name: "netplan apply fails", old: true, spoil: func(w *world) {
			w.applies = func() error { w.applies = nil; return errors.New("networkd is not running") }
		}, want: "netplan apply: networkd is not running"},
		{name: "the disk is full for the file", old: true, spoil: func(w *world) { w.room = 1 }, want: "write /etc/netplan/40-cx7.yaml: no space left"},
		{name: "the disk is full for a new file", spoil: func(w *world) { w.room = 1 }, want: "write /etc/netplan/40-cx7.yaml: no space left"},
		{name: "the disk is full for the commit", spoil: func(w *world) { w.room = 2 }, want: "commit: no space left"},
		{name: "another node rolls back", old: true, spoil: func(w *world) {
			w.agree = func(context.Context, State) error { return errors.New("spark2 rolled back") }
		}, want: "wait for the other nodes: spark2 rolled back"},
		{name: "another node does not apply", old: true, spoil: func(w *world) {
			w.agree = func(ctx context.Context, _ State) error { <-ctx.Done(); return ctx.Err() }
		}, want: "wait for the other nodes: context deadline exceeded", after: 120 * time.Second},
		{name: "another node does not get there", old: true, spoil: func(w *world) {
			w.agree = func(ctx context.Context, got State) error {
				if got == StateApplied {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}
		}, want: "wait for the other nodes: context deadline exceeded", after: 90 * time.Second},
		{name: "the caller ends it", old: true, spoil: func(w *world) { w.up = false }, cancel: 5 * time.Second,
			want: "context canceled", after: 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				files := installer()
				if tc.old {
					files[Path] = oldText
				}
				w := newWorld(files)
				before := w.netplan()
				tc.spoil(w)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.cancel > 0 {
					time.AfterFunc(tc.cancel, cancel)
				}
				began := time.Now()
				o := order(t)
				o.Agree = w.agree
				out, err := w.applier(t).Try(ctx, o)
				if !errors.Is(err, ErrRolledBack) || !strings.Contains(err.Error(), tc.want) || out.State != StateRolledBack {
					t.Errorf("%v: %v, want ...%s...", out.State, err, tc.want)
				}
				if took := time.Since(began); took != tc.after {
					t.Errorf("took %s, want %s", took, tc.after)
				}
				if w.netplan() != before || w.inForce != before {
					t.Errorf("in force:\n%s", w.inForce)
				}
				if tc.old && w.modes[Path] != 0o644 {
					t.Errorf("mode %v", w.modes[Path])
				}
				if _, left := w.files[pendingFile]; left {
					t.Error("the marker is left")
				}
			})
		})
	}
}

func TestPeerThatComesLateIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(installer())
		w.late = time.Now().Add(29 * time.Second)
		if out, err := w.applier(t).Try(t.Context(), order(t)); err != nil || out.State != StateCommitted {
			t.Error(out.State, err)
		}
	})
}

func TestTryRefuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		spoil func(*world, *Order)
		is    error
		want  string
	}{
		{"a job runs", nil, func(w *world, _ *Order) { w.busy = "vllm-7" }, ErrBusy, "job vllm-7 uses enp1s0f0np0"},
		{"management is not known", nil, func(_ *world, o *Order) { o.Management = Twin{} }, nil, "--management"},
		{"the cluster talks over it", nil, func(_ *world, o *Order) { o.Management = Twin{NIC: "enp1s0f1np1"} }, ErrManagement, "enp1s0f1np1 (by name)"},
		{"the old text alone configures management", map[string]string{Path: "network: {ethernets: {enP7s7: {dhcp4: yes}}}"}, nil, ErrManagement, "enP7s7"},
		{"removing what configures management", map[string]string{Path: "network: {ethernets: {enP7s7: {dhcp4: yes}}}"}, func(_ *world, o *Order) { o.Text = nil }, ErrManagement, "enP7s7"},
		{"another file adds an address", map[string]string{"/etc/netplan/99-x.yaml": "network: {ethernets: {enp1s0f1np1: {addresses: [10.0.0.1/24]}}}"}, nil,
			ErrMentioned, "sudo netplan set --origin-hint 99-x ethernets.enp1s0f1np1=NULL"},
		{"another file cannot be read", map[string]string{"/etc/netplan/99-x.yaml": "network: {ethernets: {a: &x {}, b: *x}}"}, nil, ErrMentioned, "an alias"},
		{"netplan does not like it", nil, func(w *world, _ *Order) { w.check = func([]Source) error { return errors.New("unknown key") } }, nil, "check /etc/netplan/40-cx7.yaml with netplan generate: unknown key"},
		{"an earlier change is open", map[string]string{pendingFile: `{"version":1,"id":"A","at":"2026-01-02T03:04:05Z","old":null,"new":null}`}, nil, ErrPending, "2026-01-02"},
		{"a marker of a newer version", map[string]string{pendingFile: `{"version":2,"id":"A"}`}, nil, nil, "version 2, want 1"},
		{"our text is no netplan", nil, func(_ *world, o *Order) { o.Text = new("network: 3") }, nil, "want a mapping"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := installer()
			for p, text := range tc.files {
				files[p] = text
			}
			w := newWorld(files)
			o := order(t)
			if tc.spoil != nil {
				tc.spoil(w, &o)
			}
			_, err := w.applier(t).Try(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("got %v, want ...%s...", err, tc.want)
			}
			if len(w.log) > 0 {
				t.Errorf("did %v all the same", w.log)
			}
			if !errors.Is(err, ErrMentioned) {
				return
			}
			o.Force = true
			if out, err := w.applier(t).Try(t.Context(), o); err != nil || out.State != StateCommitted {
				t.Errorf("forced: %v %v", out.State, err)
			}
		})
	}
}

func TestCheckSeesTheFilesAsTheyWillBe(t *testing.T) {
	w := newWorld(installer())
	w.files[Path] = oldText
	o := order(t)
	var got []Source
	w.check = func(s []Source) error { got = s; return nil }
	if _, err := w.applier(t).Try(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := []Source{{"/etc/netplan/00-installer-config.yaml", []byte(installer()["/etc/netplan/00-installer-config.yaml"])}, {Path, []byte(*o.Text)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Power is cut at each effect of a good and of a bad change, before it happens and after. The next start must find
// either the old file or, where it was committed, the new one; in force; and no marker.
func TestPowerCutAnywhere(t *testing.T) {
	for _, good := range []bool{true, false} {
		for _, old := range []bool{true, false} {
			for _, happens := range []bool{true, false} {
				for at := 1; ; at++ {
					name := fmt.Sprintf("good=%v old=%v happens=%v effect %d", good, old, happens, at)
					finished := false
					synctest.Test(t, func(t *testing.T) { finished = cutPower(t, name, good, old, happens, at) })
					if finished {
						break
					}
				}
			}
		}
	}
}

// cutPower reports whether the change was over before the at-th effect.
func cutPower(t *testing.T, name string, good, old, happens bool, at int) (finished bool) {
	files := installer()
	if old {
		files[Path] = oldText
	}
	w := newWorld(files)
	before := w.netplan()
	w.up, w.left, w.happens = good, at, happens
	o := order(t)
	out, _ := w.applier(t).Try(t.Context(), o)
	if w.left > 0 {
		return true
	}
	committed := strings.Contains(w.files[lastFile], "old")
	// Power is cut once more, in the middle of the recovery, at each of its effects.
	for again := 1; ; again++ {
		w.left, w.happens = again, happens
		w.inForce = w.netplan() // a machine that starts puts in force what it finds
		found, err := w.applier(t).Recover(t.Context())
		if w.left == 0 {
			continue
		}
		if err != nil {
			t.Errorf("%s: recover: %v", name, err)
		}
		if committed && found == RecoveredRolledBack {
			t.Errorf("%s: a committed change was rolled back", name)
		}
		break
	}
	w.left = -1
	want := before
	if committed {
		files := installer()
		files[Path] = *o.Text
		want = newWorld(files).netplan()
	}
	if w.netplan() != want || w.inForce != want {
		t.Errorf("%s (state %s): files\n%s\nin force\n%s\nwant\n%s", name, out.State, w.netplan(), w.inForce, want)
	}
	if _, left := w.files[pendingFile]; left {
		t.Errorf("%s: the marker is left", name)
	}
	// And the node can be changed again.
	w.up = true
	if out, err := w.applier(t).Try(t.Context(), o); err != nil || out.State != StateCommitted && out.State != StateUnchanged {
		t.Errorf("%s: the next change: %v %v", name, out.State, err)
	}
	return false
}

func TestAFaultThatIsNoPowerCut(t *testing.T) {
	// The disk fails once, for one effect, and the process lives on: the result is whole all the same.
	for at := 1; at <= 5; at++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(installer())
			before := w.netplan()
			a := w.applier(t)
			cfg := a.cfg
			cfg.Files = &failsOnce{Files: w, at: at}
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			out, err := a.Try(t.Context(), order(t))
			switch out.State {
			case StateCommitted:
				if err != nil || w.inForce == before {
					t.Errorf("effect %d: %v", at, err)
				}
			default:
				if err == nil || w.inForce != before || w.netplan() != before {
					t.Errorf("effect %d: state %s, %v, in force:\n%s", at, out.State, err, w.inForce)
				}
			}
			if _, err := a.Recover(t.Context()); err != nil {
				t.Error(err)
			}
			if w.netplan() != w.inForce {
				t.Errorf("effect %d: after recovery the files are not what is in force", at)
			}
			if out, err := a.Try(t.Context(), order(t)); err != nil {
				t.Errorf("effect %d: the next change: %v %v", at, out.State, err)
			}
		})
	}
}

// failsOnce reports an error for one write or removal, which takes place all the same: a full journal, a failed
// fsync of the folder.
type failsOnce struct {
	Files
	at int
}

func (f *failsOnce) fail() error {
	if f.at--; f.at == 0 {
		return errors.New("input/output error")
	}
	return nil
}

func (f *failsOnce) Write(p string, data []byte, mode fs.FileMode) error {
	return errors.Join(f.Files.Write(p, data, mode), f.fail())
}

func (f *failsOnce) Remove(p string) error { return errors.Join(f.Files.Remove(p), f.fail()) }

func TestStuckKeepsTheBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := installer()
		files[Path] = oldText
		w := newWorld(files)
		before := w.netplan()
		w.applies = func() error { return errors.New("networkd hangs") }
		_, err := w.applier(t).Try(t.Context(), order(t))
		if !errors.Is(err, ErrStuck) || errors.Is(err, ErrRolledBack) {
			t.Fatal(err)
		}
		if _, err := w.applier(t).Recover(t.Context()); !errors.Is(err, ErrStuck) {
			t.Errorf("recover while it hangs: %v", err)
		}
		w.applies = nil
		if found, err := w.applier(t).Recover(t.Context()); err != nil || found != RecoveredRolledBack {
			t.Fatal(found, err)
		}
		if w.inForce != before {
			t.Errorf("in force:\n%s", w.inForce)
		}
		if found, err := w.applier(t).Recover(t.Context()); err != nil || found != RecoveredNothing {
			t.Errorf("again: %v %v", found, err)
		}
	})
}

func TestRecoverLeavesWhatAPersonEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := installer()
		files[Path] = oldText
		w := newWorld(files)
		w.left, w.happens = 3, true // it dies as netplan apply returns
		if _, err := w.applier(t).Try(t.Context(), order(t)); !errors.Is(err, ErrStuck) {
			t.Fatal(err)
		}
		w.left = -1
		w.files[Path] = "network: {ethernets: {enp1s0f1np1: {mtu: 4200}}}\n"
		found, err := w.applier(t).Recover(t.Context())
		if err != nil || found != RecoveredEdited {
			t.Fatal(found, err)
		}
		if !strings.Contains(w.files[Path], "4200") {
			t.Error("a person's edit is lost")
		}
		m, err := parseMarker([]byte(w.files["/var/lib/sparkrun/netplan/edited.json"]))
		if err != nil || string(m.Old.Text) != oldText {
			t.Errorf("the backup is lost: %v %v", m.Old, err)
		}
	})
}

func TestUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(installer())
		before := w.netplan()
		o := order(t)
		a := w.applier(t)
		if _, err := a.Undo(t.Context(), o); !errors.Is(err, ErrNothing) {
			t.Errorf("without a change: %v", err)
		}
		if _, err := a.Try(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		after := w.netplan()
		o.Peers = nil
		for i, want := range []string{before, after, before} {
			if out, err := a.Undo(t.Context(), o); err != nil || out.State != StateCommitted || w.inForce != want {
				t.Errorf("undo %d: %v %v\n%s", i, out.State, err, w.inForce)
			}
		}
		w.files[Path], w.modes[Path] = oldText, 0o600
		if _, err := a.Undo(t.Context(), o); !errors.Is(err, ErrEdited) {
			t.Errorf("over a person's edit: %v", err)
		}
		o.Force = true
		if _, err := a.Undo(t.Context(), o); err != nil || w.inForce != after {
			t.Errorf("forced: %v\n%s", err, w.inForce)
		}
	})
}

func TestOneChangeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(installer())
		o := order(t)
		o.Agree = func(ctx context.Context, _ State) error { <-ctx.Done(); return ctx.Err() }
		a := w.applier(t)
		first := make(chan error, 1)
		go func() { _, err := a.Try(t.Context(), o); first <- err }()
		synctest.Wait()
		if _, err := a.Try(t.Context(), order(t)); !errors.Is(err, ErrBusy) {
			t.Errorf("the second: %v", err)
		}
		if _, err := a.Recover(t.Context()); !errors.Is(err, ErrBusy) {
			t.Errorf("recover meanwhile: %v", err)
		}
		if err := <-first; !errors.Is(err, ErrRolledBack) {
			t.Error(err)
		}
		if _, err := a.Recover(t.Context()); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestCheckTouchesNothing(t *testing.T) {
	files := installer()
	files["/etc/netplan/99-x.yaml"] = "network: {ethernets: {enp1s0f1np1: {addresses: [10.0.0.1/24]}}}"
	w := newWorld(files)
	o := order(t)
	o.Tell = func(s State) { t.Errorf("told %s", s) }
	seen := func(want error) {
		t.Helper()
		out, err := w.applier(t).Check(t.Context(), o)
		if !errors.Is(err, want) || len(w.log) > 0 || len(out.Mentions) != 1 || out.Diff == "" || len(out.Changes) != 2 {
			t.Errorf("%+v %v %v", out, err, w.log)
		}
	}
	seen(ErrMentioned)
	o.Force = true
	seen(nil)
	w.busy = "a job"
	seen(ErrBusy)
}

func TestLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(installer())
		a := w.applier(t)
		if change, at, err := a.Last(); change != "" || !at.IsZero() || err != nil {
			t.Errorf("before any: %q %v %v", change, at, err)
		}
		if _, err := a.Undoing(Order{}); !errors.Is(err, ErrNothing) {
			t.Errorf("undoing nothing: %v", err)
		}
		o := order(t)
		o.Change = "c1"
		var told []State
		o.Tell = func(s State) { told = append(told, s) }
		if _, err := a.Try(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if change, at, err := a.Last(); change != "c1" || !at.Equal(time.Now()) || err != nil {
			t.Errorf("after it: %q %v %v", change, at, err)
		}
		if want := []State{StateChecked, StateMarked, StateWritten, StateApplied, StateReached, StateCommitted}; !slices.Equal(told, want) {
			t.Errorf("told %q", told)
		}
		if back, err := a.Undoing(o); back.Text != nil || err != nil {
			t.Errorf("undoing %+v, %v", back, err)
		}
	})
}

func TestNew(t *testing.T) {
	good := newWorld(nil).applier(t).cfg
	if good.Grace != 30*time.Second || good.State != "/var/lib/sparkrun/netplan" {
		t.Errorf("defaults %s, %s", good.Grace, good.State)
	}
	for name, spoil := range map[string]func(*Config){
		"no busy":        func(c *Config) { c.Busy = nil },
		"negative grace": func(c *Config) { c.Grace = -1 },
		"relative state": func(c *Config) { c.State = "netplan" },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func FuzzParseMarker(f *testing.F) {
	f.Add([]byte(`{"version":1,"id":"A","at":"2026-01-02T03:04:05Z","old":{"text":"bmV0d29yaw==","mode":384},"new":"network: {}"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseMarker(data)
		if err == nil && (m.ID == "" || m.Version != markerVersion) {
			t.Errorf("accepted %q", data)
		}
	})
}

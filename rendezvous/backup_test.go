package rendezvous

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// saved is a record with a job that has ended, one that has not, one that waits,
// and a token; and its backup.
func saved(t *testing.T) (*log, []byte) {
	t.Helper()
	l := founded(t)
	waits := plannedJob("wwww", 0, t0)
	waits.Plan = Plan{}
	l.must(t, Entry{Kind: KindToken, At: t0,
		Token: &Token{ID: "tok", Hash: []byte("hash-of-it"), Uses: 1, Expires: t0.Add(time.Hour)}},
		planOf(plannedJob("aaaa", 1, t0)), endOf("aaaa", 1), planOf(plannedJob("bbbb", 1, t0)), waits.Entry())
	b, err := l.Backup(BackupHead{Taken: t0, Host: "spark1", Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return l, b
}

// A service that sleeps may have run since, on machines that are off by now: nobody waits for these.
func TestBackupAsleep(t *testing.T) {
	l, _ := saved(t)
	sleeps := JobEnd{Key: launcher.Key{Job: "bbbb", Generation: 1}, Outcome: Outcome{End: Failed, Asleep: true, Gone: true}}
	l.must(t, sleeps.Verdict())
	b, err := l.Backup(BackupHead{Taken: t0, Host: "spark1", Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadBackup(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	state, err := got.Restored(t0.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	r := NewRecord()
	if err := r.Restore(state); err != nil {
		t.Fatal(err)
	}
	if j, _ := r.Job("bbbb"); j.Outcome == nil || !strings.Contains(j.Outcome.Cause, "not known") {
		t.Errorf("its outcome is %+v", j.Outcome)
	}
}

// resealed puts the right sum under a content that was changed.
func resealed(content string) []byte { return []byte(content + sumOf([]byte(content)) + "\n") }

func TestBackup(t *testing.T) {
	l, b := saved(t)
	got, err := ReadBackup(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	cluster, epoch, index := l.Cluster()
	want := BackupHead{Format: BackupFormat, Cluster: cluster, Epoch: launcher.Epoch{N: epoch}, Index: index,
		Taken: t0, Host: "spark1", Version: "test"}
	if d := cmp.Diff(want, got.BackupHead); d != "" || got.Size != int64(len(b)) {
		t.Errorf("size %d of %d, -want +got:\n%s", got.Size, len(b), d)
	}
	if all, open := got.Jobs(); all != 3 || open != 2 {
		t.Errorf("%d jobs, %d open", all, open)
	}
	if bytes.Contains(b, []byte(`"tok"`)) || bytes.Contains(b, []byte("hash")) {
		t.Error("a token is in it")
	}
	if _, err := l.TokenByHash([]byte("hash-of-it")); err != nil {
		t.Errorf("and out of the record: %v", err)
	}

	state, err := got.Restored(t0.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	r := NewRecord()
	if err := r.Restore(state); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(l.Nodes(), r.Nodes(), byValue); d != "" {
		t.Error(d)
	}
	ended, _ := r.Job("aaaa")
	was, _ := l.Job("aaaa")
	if d := cmp.Diff(was, ended, byValue); d != "" {
		t.Errorf("a job that had ended: %s", d)
	}
	open, _ := r.Job("bbbb")
	if open.Outcome != nil || open.Restored == nil || !open.Restored.Equal(t0) {
		t.Errorf("a job that had not: %+v, %v", open.Outcome, open.Restored)
	}
	if _, more := open.Next(Outcome{End: Failed, ExitCode: 1}); more {
		t.Error("it would be tried again")
	}
	if waits, _ := r.Job("wwww"); waits.Outcome == nil || waits.Outcome.End != Failed ||
		!strings.Contains(waits.Outcome.Cause, "not known") {
		t.Errorf("a job that waited for its machines: %+v", waits.Outcome)
	}
}

// Whatever was changed in the file is found.
func TestBackupDamage(t *testing.T) {
	_, b := saved(t)
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 0x20
		if _, err := ReadBackup(bytes.NewReader(bad)); !errors.Is(err, ErrBackup) {
			t.Fatalf("byte %d of %d changed: %v", i, len(b), err)
		}
	}
	for _, n := range []int{0, 1, 40, len(b) / 2, len(b) - 66, len(b) - 1} {
		if _, err := ReadBackup(bytes.NewReader(b[:n])); !errors.Is(err, ErrBackup) {
			t.Errorf("%d bytes of it: %v", n, err)
		}
	}
	if _, err := ReadBackup(bytes.NewReader(append(bytes.Clone(b), "more\n"...))); !errors.Is(err, ErrBackup) {
		t.Errorf("a line too many: %v", err)
	}
}

// A file in order that is not what it says, or says more than this version
// understands.
func TestBackupContent(t *testing.T) {
	_, b := saved(t)
	lines := strings.SplitAfter(string(b), "\n")
	content := lines[0] + lines[1]
	if _, err := ReadBackup(bytes.NewReader(resealed(content))); err != nil {
		t.Fatalf("unchanged: %v", err)
	}
	for name, tt := range map[string]struct{ old, new, want string }{
		"a later form":         {BackupFormat, "sparkrun-record/2", "written by sparkrun test"},
		"a field of a later":   {`"jobs":{`, `"news":1,"jobs":{`, `unknown field "news"`},
		"another index":        {`"index":6,"taken"`, `"index":7,"taken"`, "does not match its state"},
		"another cluster":      {`"cluster":"c1","epoch":{`, `"cluster":"c2","epoch":{`, "does not match its state"},
		"no nodes":             {`"nodes":{"node-1":{`, `"nodes":{},"netplan":{"node-1":{`, "no nodes"},
		"a job by another id":  {`"aaaa":{`, `"cccc":{`, `job "cccc" is inconsistent`},
		"a node by another id": {`"node-1":{"id"`, `"node-2":{"id"`, `node "node-2" is inconsistent`},
		"jobs missing":         {`"jobs":{`, `"jobs":null,"netplan":{`, "lacks nodes, tokens or jobs"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := strings.Replace(content, tt.old, tt.new, 1)
			if bad == content {
				t.Fatalf("%s is not in\n%s", tt.old, content)
			}
			if _, err := ReadBackup(bytes.NewReader(resealed(bad))); !errors.Is(err, ErrBackup) ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func FuzzReadBackup(f *testing.F) {
	l := &log{Record: NewRecord()}
	e, _ := Entry{Kind: KindFound, At: t0, Found: &Found{Cluster: "c1", Epoch: 1, First: node(1)}}.Encode()
	l.Apply(1, e)
	b, err := l.Backup(BackupHead{Taken: t0, Host: "spark1", Version: "test"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:len(b)-65])
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := ReadBackup(bytes.NewReader(resealed(string(content))))
		if err != nil {
			return
		}
		state, err := got.Restored(t0)
		if err != nil || !json.Valid(state) {
			t.Fatalf("what was taken cannot be restored: %v", err)
		}
		if err := NewRecord().Restore(state); err != nil {
			t.Fatal(err)
		}
	})
}

// A side that comes to a restored record knows better, whatever the restored one
// has made of the job meanwhile.
func TestReuniteWithARestored(t *testing.T) {
	l, b := saved(t)
	got, err := ReadBackup(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	state, err := got.Restored(t0)
	if err != nil {
		t.Fatal(err)
	}
	mine := &log{Record: NewRecord(), index: l.index}
	if err := mine.Restore(state); err != nil {
		t.Fatal(err)
	}
	l.must(t, endOf("bbbb", 1))
	mine.must(t, Entry{Kind: KindEpoch, Epoch: &launcher.Epoch{N: 2, By: "node-1"}},
		failedOf("bbbb", 1, "how it ended is not known"))
	reunite(t, mine, l)
	if j, _ := mine.Job("bbbb"); j.Outcome == nil || j.Outcome.End != Completed || j.Restored != nil ||
		len(j.Attempts) != 0 {
		t.Errorf("%+v, restored %v, attempts %+v", j.Outcome, j.Restored, j.Attempts)
	}
	if j, _ := mine.Job("wwww"); j.Outcome != nil {
		t.Errorf("it waits there: %+v", j.Outcome)
	}
}

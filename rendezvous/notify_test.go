package rendezvous

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

func targetOf(name string, on ...NotifyEvent) Entry {
	return atT0(NotifyChange{Add: &NotifyTarget{Name: name, Kind: "webhook", Shown: "https://x", On: on,
		Box: []byte("sealed " + name), Created: t0, By: "root"}})
}

func atT0(c NotifyChange) Entry {
	e := c.Entry()
	e.At = t0
	return e
}

func tellOf(event NotifyEvent, host, state string) Entry {
	return atT0(NotifyChange{Tell: &NotifyTell{Told: map[string]NotifyTold{"node/" + host: {State: state, At: t0, Count: 1}},
		Notices: []Notice{{Event: event, At: t0, Host: host, State: state}}}})
}

func doneOf(id uint64, target, problem string) Entry {
	return atT0(NotifyChange{Done: &NotifyDone{Notice: id, Target: target, Error: problem}})
}

// queueText is the queue in a line: number, event, what it is about, targets.
func queueText(n Notify) string {
	var out []string
	for _, q := range n.Queue {
		out = append(out, fmt.Sprintf("%d %s %s%s>%s", q.ID, q.Event, q.Job, q.Host, strings.Join(q.To, "+")))
	}
	return strings.Join(out, ", ")
}

func endAs(id launcher.JobID, end End) Entry {
	return Entry{Kind: KindEnd, End: &JobEnd{Key: launcher.Key{Job: id, Generation: 1}, Outcome: Outcome{End: end, At: t0}}}
}

// The end of a job is queued by the entry that records it, for those who want it; who has got it is taken off.
func TestNoticesAreQueued(t *testing.T) {
	service := plannedJob("ssss", 1, t0)
	service.Spec.Service = &launcher.Service{}
	for name, tt := range map[string]struct {
		entries []Entry
		want    string
		told    string
	}{
		"nobody asks": {entries: []Entry{endAs("jjjj", Failed)}},
		"failed":      {entries: []Entry{targetOf("a", EventJobFailed), endAs("jjjj", Failed)}, want: "1 job-failed jjjj>a"},
		"rejected":    {entries: []Entry{targetOf("a", EventJobFailed), endAs("jjjj", Rejected)}, want: "1 job-failed jjjj>a"},
		"completed": {entries: []Entry{targetOf("a", EventJobFailed), targetOf("b", EventJobEnded), endAs("jjjj", Completed)},
			want: "1 job-ended jjjj>b"},
		"stopped":        {entries: []Entry{targetOf("a", EventJobEnded), endAs("jjjj", Stopped)}, want: "1 job-ended jjjj>a"},
		"a service":      {entries: []Entry{targetOf("a", NotifyEvents()...), endAs("ssss", Failed)}, want: "1 service-down ssss>a"},
		"before anybody": {entries: []Entry{endAs("jjjj", Failed), targetOf("a", EventJobFailed)}},
		"to both": {entries: []Entry{targetOf("b", EventJobFailed), targetOf("a", EventJobFailed), endAs("jjjj", Failed),
			doneOf(1, "a", "")}, want: "1 job-failed jjjj>b"},
		"to all": {entries: []Entry{targetOf("a", EventJobFailed), endAs("jjjj", Failed), endAs("ssss", Failed),
			doneOf(1, "a", "no")}},
		"one is removed": {entries: []Entry{targetOf("a", EventJobFailed), targetOf("b", EventJobFailed), endAs("jjjj", Failed),
			atT0(NotifyChange{Remove: "a"})}, want: "1 job-failed jjjj>b"},
		"all are removed": {entries: []Entry{targetOf("a", EventNodeLost), tellOf(EventNodeLost, "spark2", "lost"),
			atT0(NotifyChange{Remove: "a"})}},
		"told again": {entries: []Entry{targetOf("a", EventNodeLost), tellOf(EventNodeLost, "spark2", "lost"),
			tellOf(EventNodeLost, "spark2", "lost")}, want: "1 node-lost spark2>a", told: "lost"},
		"a machine": {entries: []Entry{targetOf("a", EventNodeLost), tellOf(EventNodeLost, "spark2", "lost"),
			tellOf(EventNodeBack, "spark2", "back")}, want: "1 node-lost spark2>a", told: "back"},
	} {
		t.Run(name, func(t *testing.T) {
			l := founded(t)
			l.must(t, planOf(plannedJob("jjjj", 1, t0)), planOf(service))
			l.must(t, tt.entries...)
			got, _ := l.Notify()
			if queueText(got) != tt.want || got.Told["node/spark2"].State != tt.told {
				t.Errorf("%q, want %q; told %v", queueText(got), tt.want, got.Told)
			}
			for _, e := range []Entry{atT0(NotifyChange{Remove: "nobody"}), doneOf(1, "nobody", "")} {
				if err := l.apply(e); err != ErrNoNotify {
					t.Errorf("%+v: %v", e.Notify, err)
				}
			}
		})
	}
	l := founded(t)
	l.must(t, targetOf("a", EventNodeLost))
	if err := l.apply(doneOf(1, "a", "what one of its name did not get")); err != ErrNoNotify {
		t.Errorf("a notice that it does not wait for: %v", err)
	}
	if err := l.apply(targetOf("a", EventNodeLost)); err != ErrNotifyExists {
		t.Errorf("a second one of its name: %v", err)
	}
	for i := range MaxNotices + 3 {
		l.must(t, tellOf(EventNodeLost, fmt.Sprint("spark", i), "lost"))
	}
	if got, _ := l.Notify(); len(got.Queue) != MaxNotices || got.LeftOut != 3 || got.Queue[0].Host != "spark0" {
		t.Errorf("%d in the queue, %d left out", len(got.Queue), got.LeftOut)
	}
	l.must(t, targetOf("b", EventNodeLost), tellOf(EventNodeLost, "another", "lost")) // who is reached is told
	if got, _ := l.Notify(); got.Waiting("a") != MaxNotices || got.Waiting("b") != 1 {
		t.Errorf("%d wait for a, %d for b", got.Waiting("a"), got.Waiting("b"))
	}
}

// A snapshot has all of it; a restored backup has no notice, as it may have been told since.
func TestNotifyIsKept(t *testing.T) {
	l := founded(t)
	_, changed := l.Notify()
	l.must(t, planOf(plannedJob("jjjj", 1, t0)))
	if isClosed(changed) {
		t.Error("a launch wakes those who wait")
	}
	l.must(t, targetOf("a", NotifyEvents()...), tellOf(EventNodeLost, "spark2", "lost"))
	_, changed = l.Notify()
	l.must(t, endAs("jjjj", Failed))
	if !isClosed(changed) {
		t.Error("the end of a job wakes nobody")
	}
	want, _ := l.Notify()
	snapshot, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.Backup(BackupHead{Taken: t0, Host: "spark1"})
	if err != nil {
		t.Fatal(err)
	}
	backup, err := ReadBackup(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	restored, err := backup.Restored(t0)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"snapshot": snapshot, "backup": restored} {
		r := NewRecord()
		if err := r.Restore(data); err != nil {
			t.Fatal(err)
		}
		want := want
		if name == "backup" {
			want.Queue = nil
		}
		if got, _ := r.Notify(); cmp.Diff(want, got) != "" {
			t.Errorf("%s (-want +got):\n%s", name, cmp.Diff(want, got))
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Ends of jobs that only the side knows that gives way are told by the other.
func TestNotifyReunites(t *testing.T) {
	job := planOf(plannedJob("jjjj", 1, t0))
	a := targetOf("a", NotifyEvents()...)
	for name, tt := range map[string]struct {
		both, ours, theirs []Entry
		want               string
	}{
		"they saw it end":       {both: []Entry{job, a}, theirs: []Entry{endAs("jjjj", Failed)}, want: "1 job-failed jjjj>a"},
		"and told it":           {both: []Entry{job, a}, theirs: []Entry{endAs("jjjj", Failed), doneOf(1, "a", "")}},
		"both knew, we told it": {both: []Entry{job, a, endAs("jjjj", Failed)}, ours: []Entry{doneOf(1, "a", "")}},
		"and told one": {both: []Entry{job, a, targetOf("b", EventJobFailed)}, want: "1 job-failed jjjj>b",
			theirs: []Entry{endAs("jjjj", Failed), doneOf(1, "a", "")}},
		"we go on with it": {both: []Entry{job, a}, ours: []Entry{planOf(plannedJob("jjjj", 2, t0))},
			theirs: []Entry{endAs("jjjj", Failed)}},
		"they lost a machine":     {both: []Entry{a}, theirs: []Entry{tellOf(EventNodeLost, "spark1", "lost")}},
		"they have a target":      {both: []Entry{job}, theirs: []Entry{a, endAs("jjjj", Failed)}, want: "1 job-failed jjjj>a"},
		"we have removed the one": {both: []Entry{job, a}, ours: []Entry{atT0(NotifyChange{Remove: "a"})}},
	} {
		t.Run(name, func(t *testing.T) {
			mine, other := split(t, tt.both, tt.ours, tt.theirs)
			reunite(t, mine, other)
			if got, _ := mine.Notify(); queueText(got) != tt.want {
				t.Errorf("%q, want %q", queueText(got), tt.want)
			}
		})
	}
}

func TestNotifyTargetIsChecked(t *testing.T) {
	for name, change := range map[string]func(*NotifyTarget){
		"no name":        func(t *NotifyTarget) { t.Name = "a b" },
		"no such kind":   func(t *NotifyTarget) { t.Kind = "mail" },
		"no event":       func(t *NotifyTarget) { t.On = nil },
		"no such event":  func(t *NotifyTarget) { t.On = []NotifyEvent{"job-began"} },
		"one twice":      func(t *NotifyTarget) { t.On = []NotifyEvent{EventJobEnded, EventJobEnded} },
		"nothing sealed": func(t *NotifyTarget) { t.Box = nil },
		"too much":       func(t *NotifyTarget) { t.Box = make([]byte, MaxNotifyBox+1) },
		"no plain text":  func(t *NotifyTarget) { t.Shown = "\x1b[2J" },
	} {
		good := *targetOf("a", EventJobEnded).Notify.Add
		if err := good.Validate(); err != nil {
			t.Fatal(err)
		}
		if change(&good); !errors.Is(good.Validate(), launcher.ErrInvalid) {
			t.Errorf("%s is taken", name)
		}
	}
}

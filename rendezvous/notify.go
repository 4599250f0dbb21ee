package rendezvous

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// NotifyEvent is what people may be told of.
type NotifyEvent string

// Each end of a job or service is one event: JobFailed for a job that failed or could not be started, ServiceDown for
// such a service, JobEnded for whatever completed or was stopped.
const (
	EventJobEnded      NotifyEvent = "job-ended"
	EventJobFailed     NotifyEvent = "job-failed"
	EventServiceWedged NotifyEvent = "service-wedged"
	EventServiceDown   NotifyEvent = "service-down" // it answered and no longer does, or it has failed
	EventServiceUp     NotifyEvent = "service-up"   // it answers: for the first time, or again
	EventNodeLost      NotifyEvent = "node-lost"
	EventNodeBack      NotifyEvent = "node-back"
	EventDoctorError   NotifyEvent = "doctor-error"
)

// NotifyEvents are all of them.
func NotifyEvents() []NotifyEvent {
	return []NotifyEvent{EventJobEnded, EventJobFailed, EventServiceWedged, EventServiceDown, EventServiceUp,
		EventNodeLost, EventNodeBack, EventDoctorError}
}

// Notify is who is told of what, and what they have been told. While nobody is told of anything all of it is empty.
type Notify struct {
	Targets map[string]NotifyTarget `json:"targets,omitempty"` // by name
	// Since is when the first target was added: what was so before is no news.
	Since time.Time `json:"since,omitzero"`
	// Told is what was last said of each thing that changes to and fro, by its key: see NotifyService.
	Told map[string]NotifyTold `json:"told,omitempty"`
	// Queue has the notices that have not reached all their targets, oldest first.
	Queue []Notice `json:"queue,omitempty"`
	// Last numbers the notices.
	Last uint64 `json:"last,omitempty"`
	// LeftOut counts the notices that a target never gets, as too many wait for it.
	LeftOut int `json:"left_out,omitempty"`
}

// NotifyTarget is told of events.
type NotifyTarget struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // "webhook" or "command"
	// Shown is where it is, as far as everybody may know.
	Shown string        `json:"shown"`
	On    []NotifyEvent `json:"on"`
	// Box is the URL and the headers, or the command: sealed with members' keys, bound to NotifyWords.
	Box     []byte     `json:"box"`
	Created time.Time  `json:"created"` // the leader's clock
	By      string     `json:"by"`      // the user who added it
	Sent    NotifySent `json:"sent,omitzero"`
}

// NotifySent is how the last notice to a target went.
type NotifySent struct {
	At    time.Time `json:"at"`              // the leader's clock
	Error string    `json:"error,omitempty"` // why it was given up; empty: it has arrived
}

// NotifyTold is what was last said of something.
type NotifyTold struct {
	State string    `json:"state"`
	At    time.Time `json:"at"` // the leader's clock
	// Count is how often in a row something was said of it: who flaps is to be told of less often.
	Count int `json:"count,omitempty"`
}

// Notice is one event for some targets.
type Notice struct {
	ID    uint64      `json:"id"` // set by the record; none is used twice
	Event NotifyEvent `json:"event"`
	At    time.Time   `json:"at"` // the leader's clock
	// Job is what it is about; what became of it is in the record. Of a service that goes on, State and Cause say more.
	Job   launcher.JobID `json:"job,omitempty"`
	Host  string         `json:"host,omitempty"`
	State string         `json:"state,omitempty"`
	Cause string         `json:"cause,omitempty"`
	// To are the targets that it has not reached; set by the record.
	To []string `json:"to"`
}

// NotifyChange is one change. Exactly one field is set.
type NotifyChange struct {
	Add    *NotifyTarget `json:"add,omitempty"`
	Remove string        `json:"remove,omitempty"` // a target's name
	Tell   *NotifyTell   `json:"tell,omitempty"`
	Done   *NotifyDone   `json:"done,omitempty"`
}

// NotifyTell is what a leader saw: both in one entry, so that no leader says it again.
type NotifyTell struct {
	Told    map[string]NotifyTold `json:"told"` // without a state: forget it
	Notices []Notice              `json:"notices,omitempty"`
}

// NotifyDone says that a target got a notice, or that it was given up.
type NotifyDone struct {
	Notice uint64 `json:"notice"`
	Target string `json:"target"`
	Error  string `json:"error,omitempty"`
}

// Bounds: a snapshot has all of it.
const (
	MaxNotifyTargets = 20
	MaxNotifyBox     = 4 << 10 // bytes
	MaxNotices       = 100     // that wait for one target
	MaxNoticeText    = 1000    // bytes of a cause
)

// Errors of changes.
var (
	ErrNotifyExists = errors.New("there is one of this name")
	ErrNoNotify     = errors.New("nobody of this name is told of anything")
)

// Keys of Told.

// NotifyService is a service's.
func NotifyService(id launcher.JobID) string { return "service/" + string(id) }

// NotifyNode is a machine's.
func NotifyNode(id launcher.NodeID) string { return "node/" + string(id) }

// NotifyFinding is that of an error of doctor's.
func NotifyFinding(code, node string) string { return "finding/" + code + "/" + node }

// NotifyWords are what a target's box is bound to. A job's secret has three words.
func NotifyWords(name string) []string { return []string{"notify", name} }

// Entry records it.
func (c NotifyChange) Entry() Entry { return Entry{Kind: KindNotify, Notify: &c} }

// DoneIn tells whether the settings are as the change has them.
func (c NotifyChange) DoneIn(n Notify) bool {
	switch {
	case c.Add != nil:
		t, has := n.Targets[c.Add.Name]
		return has && t.Created.Equal(c.Add.Created) && slices.Equal(t.Box, c.Add.Box)
	case c.Remove != "":
		_, has := n.Targets[c.Remove]
		return !has
	case c.Tell != nil:
		for key, told := range c.Tell.Told {
			if now := n.Told[key]; now.State != told.State || !now.At.Equal(told.At) && told.State != "" {
				return false
			}
		}
		return true
	case c.Done != nil:
		return !n.waits(c.Done.Notice, c.Done.Target)
	}
	return false
}

// waits tells whether a target has yet to get a notice.
func (n Notify) waits(id uint64, target string) bool {
	return slices.ContainsFunc(n.Queue, func(q Notice) bool { return q.ID == id && slices.Contains(q.To, target) })
}

// Waiting counts the notices that a target has yet to get.
func (n Notify) Waiting(target string) (waiting int) {
	for _, q := range n.Queue {
		if slices.Contains(q.To, target) {
			waiting++
		}
	}
	return waiting
}

// Next is the oldest notice that a target has yet to get.
func (n Notify) Next(target string) (Notice, bool) {
	i := slices.IndexFunc(n.Queue, func(q Notice) bool { return slices.Contains(q.To, target) })
	if i < 0 {
		return Notice{}, false
	}
	return n.Queue[i], true
}

// Validate refuses a target that no leader could follow.
func (t NotifyTarget) Validate() error {
	switch {
	case !launcher.IsName(t.Name):
		return fmt.Errorf("notify %.64q: %w: want a name of letters, digits and _.-, 64 at most", t.Name, launcher.ErrInvalid)
	case t.Kind != "webhook" && t.Kind != "command":
		return fmt.Errorf("notify %s: %w: kind %.20q: want webhook or command", t.Name, launcher.ErrInvalid, t.Kind)
	case len(t.On) == 0:
		return fmt.Errorf("notify %s: %w: it has no event", t.Name, launcher.ErrInvalid)
	case len(t.Box) == 0 || len(t.Box) > MaxNotifyBox || len(t.Shown) > 200 || !plain.Is(t.Shown):
		return fmt.Errorf("notify %s: %w: its URL, headers or command are longer than %d bytes", t.Name, launcher.ErrInvalid,
			MaxNotifyBox)
	}
	all := NotifyEvents()
	for i, e := range t.On {
		switch {
		case !slices.Contains(all, e):
			return fmt.Errorf("notify %s: %w: event %.32q: want of %s", t.Name, launcher.ErrInvalid, e, JoinEvents(all))
		case slices.Contains(t.On[:i], e):
			return fmt.Errorf("notify %s: %w: event %s is given twice", t.Name, launcher.ErrInvalid, e)
		}
	}
	return nil
}

// JoinEvents lists events as --on takes them.
func JoinEvents(all []NotifyEvent) string {
	words := make([]string, len(all))
	for i, e := range all {
		words[i] = string(e)
	}
	return strings.Join(words, ",")
}

// changeNotify makes new maps and lists: those that were handed out are not touched.
func (s *state) changeNotify(at time.Time, c NotifyChange) error {
	n := s.Notify
	switch {
	case c.Add != nil:
		if _, taken := n.Targets[c.Add.Name]; taken {
			return ErrNotifyExists
		}
		if len(n.Targets) >= MaxNotifyTargets {
			return fmt.Errorf("%w: there are %d, at most so many; remove some", launcher.ErrInvalid, len(n.Targets))
		}
		if len(n.Targets) == 0 {
			n.Since = at
		}
		n.Targets = cloned(n.Targets)
		n.Targets[c.Add.Name] = *c.Add
	case c.Remove != "":
		if _, has := n.Targets[c.Remove]; !has {
			return ErrNoNotify
		}
		if len(n.Targets) == 1 {
			s.Notify = Notify{Last: n.Last}
			return nil
		}
		n.Targets = cloned(n.Targets)
		delete(n.Targets, c.Remove)
		n = n.without(c.Remove, 0)
	case c.Tell != nil && c.DoneIn(n): // an entry whose fate was not known is committed again
	case c.Tell != nil:
		n.Told = cloned(n.Told)
		for key, told := range c.Tell.Told {
			if told.State == "" {
				delete(n.Told, key)
			} else {
				n.Told[key] = told
			}
		}
		for _, q := range c.Tell.Notices {
			n = n.queued(q)
		}
	case c.Done != nil:
		t := n.Targets[c.Done.Target]
		if !n.waits(c.Done.Notice, c.Done.Target) { // it was removed, and may be there anew
			return ErrNoNotify
		}
		t.Sent = NotifySent{At: at, Error: c.Done.Error}
		n.Targets = cloned(n.Targets)
		n.Targets[t.Name] = t
		n = n.without(t.Name, c.Done.Notice)
	}
	s.Notify = n
	return nil
}

// without takes a target off a notice, or off all for 0; a notice without targets is gone.
func (n Notify) without(target string, id uint64) Notify {
	var left []Notice
	for _, q := range n.Queue {
		if id == 0 || q.ID == id {
			q.To = slices.DeleteFunc(slices.Clone(q.To), func(name string) bool { return name == target })
		}
		if len(q.To) > 0 {
			left = append(left, q)
		}
	}
	n.Queue = left
	return n
}

// queued adds a notice for those targets that want it, of those in To if that has some. Of too many for one the first
// stay: they have the cause.
func (n Notify) queued(q Notice) Notify {
	of := q.To
	q.To = nil
	for _, name := range slices.Sorted(maps.Keys(n.Targets)) {
		switch {
		case !slices.Contains(n.Targets[name].On, q.Event), len(of) > 0 && !slices.Contains(of, name):
		case n.Waiting(name) >= MaxNotices:
			n.LeftOut++
		default:
			q.To = append(q.To, name)
		}
	}
	if len(q.To) > 0 {
		n.Last++
		q.ID = n.Last
		n.Queue = append(slices.Clone(n.Queue), q)
	}
	return n
}

// noticeEnd queues that a job has ended, in the entry that says so: a leader that dies then leaves it to the next one.
func (s *state) noticeEnd(j Job) {
	if len(s.Notify.Targets) == 0 {
		return
	}
	event := EventJobEnded
	switch bad := j.Outcome.End == Failed || j.Outcome.End == Rejected; {
	case bad && j.Spec.Service != nil:
		event = EventServiceDown
	case bad:
		event = EventJobFailed
	}
	s.Notify = s.Notify.queued(Notice{Event: event, At: j.Outcome.At, Job: j.Spec.ID})
}

// Notify gives who is told of what, and a channel that the next change of it closes; no other entry of the record does.
// Maps and lists are not to be changed.
func (r *Record) Notify() (Notify, <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.Notify, r.notifyChanged
}

// notifyHasChanged wakes those who wait for a change. r.mu is held.
func (r *Record) notifyHasChanged() {
	close(r.notifyChanged)
	r.notifyChanged = make(chan struct{})
}

// notifyParts is what the side with the later epoch takes over: the targets, and the ends of jobs that are not told yet.
func (s *state) notifyParts(from launcher.Epoch, node launcher.NodeID) []Reunited {
	if len(s.Notify.Targets) == 0 {
		return nil
	}
	parts := []Reunited{{From: from, Node: node, Notify: &Notify{Targets: s.Notify.Targets, Since: s.Notify.Since}}}
	ends := slices.DeleteFunc(slices.Clone(s.Notify.Queue), func(q Notice) bool { return q.Job == "" || q.State != "" })
	for some := range slices.Chunk(ends, 50) {
		parts = append(parts, Reunited{From: from, Node: node, Notify: &Notify{Queue: some}})
	}
	return parts
}

// reuniteNotify adds the other side's targets; one that this side has removed meanwhile comes back, as an alias does.
// Ends of jobs that only the other side knows are told by this one, as the other may have had no way out.
func (s *state) reuniteNotify(u Notify, from launcher.Epoch) {
	n := s.Notify
	n.Targets = cloned(n.Targets)
	if len(n.Targets) == 0 {
		n.Since = u.Since
	}
	for name, t := range u.Targets {
		if _, taken := n.Targets[name]; !taken && len(n.Targets) < MaxNotifyTargets {
			n.Targets[name] = t
		}
	}
	for _, q := range u.Queue {
		queued := slices.ContainsFunc(n.Queue, func(o Notice) bool { return o.Event == q.Event && o.Job == q.Job })
		// Else this side has told of it, or will.
		if ours := s.Jobs[q.Job]; ours.Outcome == nil && ours.Touched.Compare(from) <= 0 && !queued {
			n = n.queued(q)
		}
	}
	s.Notify = n
}

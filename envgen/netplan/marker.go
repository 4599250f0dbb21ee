package netplan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"
)

// fileMode is what netplan requires: its files may hold secrets, and it warns of wider modes.
const fileMode fs.FileMode = 0o600

// markerVersion is the version of the files in the state folder. A newer one is refused.
const markerVersion = 1

const (
	pendingName = "pending.json" // a change in progress; if it is found at start-up, it is undone
	lastName    = "last.json"    // the last change that was committed, for Undo
	editedName  = "edited.json"  // an interrupted change whose file a person has edited since
)

// marker is a change with everything that is needed to undo it, so that writing it is
// one step.
type marker struct {
	Version int `json:"version"`
	// ID tells a change from a later one with the same texts.
	ID string `json:"id"`
	// Change is the Order's.
	Change string    `json:"change,omitempty"`
	At     time.Time `json:"at"`
	// Old is nil where there was no file; New is nil where the change removes it.
	Old *backup `json:"old"`
	New *string `json:"new"`
}

type backup struct {
	Text []byte      `json:"text"`
	Mode fs.FileMode `json:"mode"`
}

func (a *Applier) state(name string) string { return path.Join(a.cfg.State, name) }

func (a *Applier) writeMarker(name string, m marker) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return a.cfg.Files.Write(a.state(name), append(data, '\n'), fileMode)
}

func (a *Applier) readMarker(name string) (marker, error) {
	data, _, err := a.cfg.Files.Read(a.state(name))
	if err != nil {
		return marker{}, fmt.Errorf("read %s: %w", a.state(name), err)
	}
	m, err := parseMarker(data)
	if err != nil {
		return marker{}, fmt.Errorf("read %s: %w; look at %s and remove the marker by hand", a.state(name), err, Path)
	}
	return m, nil
}

func parseMarker(data []byte) (marker, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var m marker
	if err := dec.Decode(&m); err != nil {
		return marker{}, fmt.Errorf("parse marker: %w", err)
	}
	if m.Version != markerVersion || m.ID == "" {
		return marker{}, fmt.Errorf("parse marker: version %d, want %d", m.Version, markerVersion)
	}
	return m, nil
}

// Recovered says what Recover found.
type Recovered string

const (
	RecoveredNothing    Recovered = "nothing"     // no change was in progress
	RecoveredCommitted  Recovered = "committed"   // the change was committed; only its marker was left
	RecoveredRolledBack Recovered = "rolled back" // the change is undone
	RecoveredEdited     Recovered = "edited"      // a person has edited the file since: it is kept
)

// Recover undoes a change that a crash or a power cut interrupted. Call it at each start, before the node takes
// jobs; repeating it does no harm.
func (a *Applier) Recover(ctx context.Context) (Recovered, error) {
	unlock, err := a.lock()
	if err != nil {
		return RecoveredNothing, err
	}
	defer unlock()
	pending, committed, err := a.pending()
	switch {
	case err != nil:
		return RecoveredNothing, err
	case pending == nil:
		return RecoveredNothing, nil
	case committed:
		return a.forget(RecoveredCommitted)
	}
	m := *pending
	edited, err := a.edited(m)
	if err != nil {
		return RecoveredNothing, err
	}
	if edited {
		if err := a.writeMarker(editedName, m); err != nil {
			return RecoveredNothing, fmt.Errorf("keep the backup of %s: %w", Path, err)
		}
		a.cfg.Log.Warn("netplan change was cut short and its file edited since: it stays", "path", Path, "backup",
			a.state(editedName))
		return a.forget(RecoveredEdited)
	}
	if err := a.restore(ctx, m); err != nil {
		return RecoveredNothing, fmt.Errorf("undo the netplan change of %s: %w: %w", m.At.Format(time.RFC3339), ErrStuck, err)
	}
	a.cfg.Log.Warn("netplan change was cut short: rolled back", "path", Path, "begun", m.At)
	return RecoveredRolledBack, nil
}

// pending returns the marker of a change that is in progress or was interrupted; nil if there is none. committed is
// true where only the marker is left.
func (a *Applier) pending() (m *marker, committed bool, err error) {
	found, err := a.readMarker(pendingName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	last, err := a.readMarker(lastName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	return &found, err == nil && last.ID == found.ID, nil
}

func (a *Applier) forget(r Recovered) (Recovered, error) {
	if err := a.cfg.Files.Remove(a.state(pendingName)); err != nil {
		return RecoveredNothing, fmt.Errorf("remove %s: %w", a.state(pendingName), err)
	}
	return r, nil
}

// edited reports whether the file is neither what the change found nor what it wrote.
func (a *Applier) edited(m marker) (bool, error) {
	var old *string
	if m.Old != nil {
		old = new(string(m.Old.Text))
	}
	isOld, err := a.same(old)
	if err != nil || isOld {
		return false, err
	}
	isNew, err := a.same(m.New)
	return !isNew, err
}

// Undo tries what was there before the last committed change, with the order's peers and refusals; Text is
// ignored. Undoing twice gives the state before the first. Errors are those of Undoing and Try.
func (a *Applier) Undo(ctx context.Context, o Order) (Outcome, error) {
	unlock, err := a.lock()
	if err != nil {
		return Outcome{}, err
	}
	defer unlock()
	if o, err = a.Undoing(o); err != nil {
		return Outcome{}, err
	}
	return a.try(ctx, o)
}

// Undoing returns the order with the text from before the last committed change. ErrNothing where no change was
// made, ErrEdited where the file is not as that change left it (Force undoes it all the same).
func (a *Applier) Undoing(o Order) (Order, error) {
	m, err := a.readMarker(lastName)
	if errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("undo netplan change: %w", ErrNothing)
	}
	if err != nil {
		return o, err
	}
	asLeft, err := a.same(m.New)
	if err != nil {
		return o, err
	}
	if !asLeft && !o.Force {
		return o, fmt.Errorf("undo netplan change of %s: %s: %w; --force overrides", m.At.Format(time.RFC3339), Path,
			ErrEdited)
	}
	o.Text = nil
	if m.Old != nil {
		o.Text = new(string(m.Old.Text))
	}
	return o, nil
}

// Last gives the name, by its Order, of the last change that was committed on this node, and when it was begun.
// The time is zero where there was none.
func (a *Applier) Last() (change string, at time.Time, err error) {
	m, err := a.readMarker(lastName)
	if errors.Is(err, fs.ErrNotExist) {
		return "", time.Time{}, nil
	}
	return m.Change, m.At, err
}

package rendezvous

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Snapshot renders the whole state, the jobs one by one: the encoder's pool would keep a
// buffer for all of them (1 MB for 500 jobs).
func (r *Record) Snapshot() ([]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	rest, err := json.Marshal(struct {
		state
		Jobs *int `json:"jobs,omitempty"` // hides the state's
	}{state: r.s})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(int(r.rendered.Load()))
	one := json.NewEncoder(&out)
	separator := `{"jobs":{`
	for _, id := range slices.Sorted(maps.Keys(r.s.Jobs)) {
		out.WriteString(separator)
		separator = ","
		if err := one.Encode(id); err != nil {
			return nil, err
		}
		out.WriteByte(':')
		if err := one.Encode(r.s.Jobs[id]); err != nil {
			return nil, fmt.Errorf("render job %s: %w", id, err)
		}
	}
	if len(r.s.Jobs) == 0 {
		out.WriteString(separator)
	}
	out.WriteString("},")
	out.Write(rest[1:]) // it always has fields
	r.rendered.Store(int64(out.Len() + out.Len()/8))
	return out.Bytes(), nil
}

// Restore replaces the whole state by a snapshot's.
func (r *Record) Restore(data []byte) error {
	fresh := NewRecord()
	if err := known(data, &fresh.s); err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	if fresh.s.Nodes == nil || fresh.s.Tokens == nil || fresh.s.Jobs == nil {
		return errors.New("restore snapshot: it lacks nodes, tokens or jobs") // with a null the next Apply would panic
	}
	for id, j := range fresh.s.Jobs {
		j.share()
		fresh.s.Jobs[id] = j
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s = fresh.s
	close(r.changed)
	r.changed = make(chan struct{})
	r.gatewayHasChanged()
	r.notifyHasChanged()
	return nil
}

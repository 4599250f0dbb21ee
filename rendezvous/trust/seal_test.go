package trust

import (
	"bytes"
	"errors"
	"testing"
)

func TestSeal(t *testing.T) {
	older, newer := NewGossipKey(0), NewGossipKey(1)
	sealer := func(keys ...GossipKey) Sealer {
		t.Helper()
		s, err := NewSealer(keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	plain := NewSecret([]byte("hf_planted"))
	box, err := sealer(older).Seal(plain, "job1", "alice", "HF_TOKEN")
	if err != nil || bytes.Contains(box, plain.Reveal()) {
		t.Fatalf("sealed: %v, %q", err, box)
	}
	if again, _ := sealer(older).Seal(plain, "job1", "alice", "HF_TOKEN"); bytes.Equal(again, box) {
		t.Error("sealed twice, it looks the same: who reads the record learns which jobs have one secret")
	}
	// While keys are changed both are in the keyring.
	if got, err := sealer(newer, older).Open(box, "job1", "alice", "HF_TOKEN"); err != nil || !got.Equal(plain) {
		t.Errorf("opened: %v", err)
	}
	broken := bytes.Clone(box)
	broken[len(broken)-1] ^= 1
	for name, c := range map[string]struct {
		with  Sealer
		box   []byte
		words []string
	}{
		"a key that was given up": {sealer(newer), box, []string{"job1", "alice", "HF_TOKEN"}},
		"another job":             {sealer(older), box, []string{"job2", "alice", "HF_TOKEN"}},
		"another user":            {sealer(older), box, []string{"job1", "mallory", "HF_TOKEN"}},
		"words that only join up": {sealer(older), box, []string{"job1", "alice", "HF_", "TOKEN"}},
		"a changed byte":          {sealer(older), broken, []string{"job1", "alice", "HF_TOKEN"}},
		"a later version":         {sealer(older), append([]byte{2}, box[1:]...), []string{"job1", "alice", "HF_TOKEN"}},
		"nothing":                 {sealer(older), nil, []string{"job1", "alice", "HF_TOKEN"}},
	} {
		if _, err := c.with.Open(c.box, c.words...); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewSealer(nil, nil); err == nil {
		t.Error("a sealer without a key")
	}
}

package wire

import (
	"bytes"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Absent values stay absent: a zero time, address or pointer is not another one.
func TestCodecKeepsAbsence(t *testing.T) {
	for _, v := range []struct{ in, out any }{
		{&Status{}, new(Status)}, {&NodeStatus{}, new(NodeStatus)}, {&LaunchRequest{}, new(LaunchRequest)},
		{&StopRequest{}, new(StopRequest)}, {&StopRequest{Grace: new(time.Duration(0))}, new(StopRequest)},
		{&rendezvous.Progress{}, new(rendezvous.Progress)}, {&rendezvous.Member{}, new(rendezvous.Member)},
		{&JoinRequest{}, new(JoinRequest)}, {&UpHello{}, new(UpHello)}, {&Down{}, new(Down)}, {&Up{}, new(Up)},
		{&launcher.Assignment{}, new(launcher.Assignment)}, {&rendezvous.Plan{}, new(rendezvous.Plan)},
	} {
		b, err := theCodec.Marshal(v.in)
		if err != nil {
			t.Fatal(err)
		}
		if err := theCodec.Unmarshal(b, v.out); err != nil {
			t.Fatalf("%T: %v", v.in, err)
		}
		if d := diff(v.in, v.out); d != "" {
			t.Errorf("%T: %s", v.in, d)
		}
	}
}

// A node of another version sends fields that this one does not know.
func TestCodecSkipsUnknownFields(t *testing.T) {
	b, err := theCodec.Marshal(map[string]any{"fence": map[string]any{"epoch": 1, "term": 2, "dance": true},
		"host": "spark1", "tomorrow": []any{1, "x"}})
	if err != nil {
		t.Fatal(err)
	}
	var h Hello
	if err := theCodec.Unmarshal(b, &h); err != nil || h.Host != "spark1" || h.Fence.Term != 2 {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestCodecRefuses(t *testing.T) {
	deep := bytes.Repeat([]byte{0x81}, 100) // arrays in arrays
	for name, b := range map[string][]byte{
		"nothing":           {},
		"a field twice":     {0xa2, 0x63, 'j', 'o', 'b', 0x61, 'a', 0x63, 'j', 'o', 'b', 0x61, 'b'},
		"no UTF-8":          {0xa1, 0x63, 'j', 'o', 'b', 0x61, 0xff},
		"cut short":         {0xa1, 0x63, 'j', 'o'},
		"something behind":  {0xa0, 0xa0},
		"nested too deep":   deep,
		"a huge array":      {0x9b, 0, 0, 0, 1, 0, 0, 0, 0},
		"a number for text": {0xa1, 0x63, 'j', 'o', 'b', 0x01},
	} {
		var r JobRequest
		if err := theCodec.Unmarshal(b, &r); err == nil {
			t.Errorf("%s: read as %+v", name, r)
		}
	}
}

func FuzzCodec(f *testing.F) {
	for _, v := range []any{full[Down](), full[Up](), full[LaunchRequest](), full[JoinRequest](), full[BarrierRequest](),
		full[BarrierPart](), Down{}, Up{}, Down{Order: new(orderFor("jjjj"))}} {
		b, err := theCodec.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(Down), new(Up), new(LaunchRequest), new(JoinRequest), new(UpHello),
			new(BarrierRequest), new(BarrierPart)} {
			if theCodec.Unmarshal(b, v) != nil {
				continue
			}
			// What was read can be passed on, and what a node does first with it
			// must not end the node.
			again, err := theCodec.Marshal(v)
			if err != nil {
				t.Fatalf("%T cannot be passed on: %v", v, err)
			}
			if err := theCodec.Unmarshal(again, v); err != nil {
				t.Fatalf("%T changed: %v", v, err)
			}
			switch m := v.(type) {
			case *LaunchRequest:
				m.Spec.WithDefaults().Validate()
			case *UpHello:
				for _, e := range m.Ledger {
					_ = e.Phase.String() + e.Key.String()
				}
			case *Down:
				if m.Order != nil && m.Order.Prepare != nil {
					a := m.Order.Prepare
					if st := a.Spec.MainStage(); st != nil {
						a.Placement(0, 1).Argv(*st)
					}
				}
			}
		}
	})
}

// Output comes out of a message as it went in, whatever its length; and what is no output is refused.
func TestOutputOfAMessage(t *testing.T) {
	for _, size := range []int{0, 1, 23, 24, 255, 256, 65535, 65536, 128 << 10} {
		was := LogChunk{Rank: 1, Stream: Stdout, Offset: 7, Data: bytes.Repeat([]byte{'x'}, size), Note: "after it"}
		b, err := theCodec.Marshal(was)
		if err != nil {
			t.Fatal(err)
		}
		var is LogChunk
		if err := theCodec.Unmarshal(b, &is); err != nil || !bytes.Equal(is.Data, was.Data) || is.Note != was.Note {
			t.Errorf("%d bytes: %d came out, note %q, %v", size, len(is.Data), is.Note, err)
		}
	}
	for _, other := range []any{"text", 12, []int{1}, true} {
		b, err := theCodec.Marshal(map[string]any{"data": other})
		if err != nil {
			t.Fatal(err)
		}
		if err := theCodec.Unmarshal(b, new(LogChunk)); err == nil {
			t.Errorf("%v was taken for output", other)
		}
	}
}

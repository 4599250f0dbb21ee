package fabric

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

func testFrame() frame {
	return frame{
		every: 4 * time.Second, session: 0x1122334455667788, counter: 9, boot: shortDigest("boot"), mac: mac{2, 3, 4, 5, 6, 7},
		pci:  &envgen.PCIAddress{Domain: 2, Bus: 1, Device: 3, Function: 1},
		node: "7d3c2f6e-30a7-4d51-9c4e-5f3b8a1d2c4b", host: "spark-größe", nic: "enP2p1s0f1np1", slot: "01:03.1",
		echoes: []echo{{1, 2}, {0xffffffffffffffff, 0xffffffff}},
	}
}

func testKeys(t testing.TB, secrets ...string) *keyring {
	t.Helper()
	var all [][]byte
	for _, s := range secrets {
		all = append(all, secret(s))
	}
	k, err := newKeyring("c1", all)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var allFields = cmp.AllowUnexported(frame{}, echo{})

// The bytes of version 1 are for ever: members of different releases share a wire.
func TestFrameGolden(t *testing.T) {
	got := hex.EncodeToString(testKeys(t, "k").seal(testFrame()))
	if got != goldenFrame {
		t.Errorf("a frame of version 1 is now\n%s\nwas\n%s", got, goldenFrame)
	}
	raw, err := hex.DecodeString(goldenFrame)
	if err != nil {
		t.Fatal(err)
	}
	f, err := testKeys(t, "other", "k").open(append(raw, 0, 0, 0)) // with padding
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(testFrame(), f, allFields); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

const goldenFrame = "" +
	"5350524b010400b4d0f631ca1ddba8db1122334455667788000000094509beb0ab401d71020304050607010000000201" +
	"19002437643363326636652d333061372d346435312d396334652d3566336238613164326334620d737061726b2d6772" +
	"c3b6c39f650d656e50327031733066316e70310730313a30332e3102000000000000000100000002ffffffffffffffff" +
	"ffffffff2eac5a47b324d004957617cc6daf5f9cdd0941337039faae6df6ca989c2fa071"

func TestFrameFits(t *testing.T) {
	f := testFrame()
	long := strings.Repeat("x", 100)
	f.node, f.host, f.nic, f.slot = long, strings.Repeat("ö", 60), long, long
	f.echoes = make([]echo, 500)
	b := testKeys(t, "k").seal(f)
	if len(b) > maxFrame {
		t.Errorf("%d bytes", len(b))
	}
	got, err := testKeys(t, "k").open(b)
	if err != nil || len(got.echoes) != maxEchoes || got.host != strings.Repeat("ö", 32) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Each byte counts: no frame with one changed is believed, and why is told apart.
func TestFrameRefused(t *testing.T) {
	k := testKeys(t, "k")
	good := k.seal(testFrame())
	for at := range good {
		b := bytes.Clone(good)
		b[at] ^= 0x40
		if f, err := k.open(b); err == nil {
			t.Errorf("byte %d changed, and read as %+v", at, f)
		}
		if f, err := k.open(good[:at]); err == nil {
			t.Errorf("%d bytes read as %+v", at, f)
		}
	}
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	resign := func(edit func(b []byte) []byte) []byte {
		b := edit(bytes.Clone(good[:len(good)-tagBytes]))
		b[6], b[7] = byte((len(b)+tagBytes)>>8), byte(len(b)+tagBytes)
		return append(b, k.tag(k.macs[0], b)...)
	}
	for name, c := range map[string]struct {
		b    []byte
		want error // nil for any
	}{
		"nothing":             {nil, errNotProbe},
		"another's protocol":  {change(0, 'X'), errNotProbe},
		"another cluster":     {change(9, good[9]+1), errOtherCluster},
		"another version":     {change(4, 2), errNewer},
		"another key":         {testKeys(t, "x").seal(testFrame()), errForged},
		"no room for a tag":   {change(7, 20), errForged},
		"no beat":             {resign(func(b []byte) []byte { b[5] = 0; return b }), nil},
		"half a PCI address":  {resign(func(b []byte) []byte { b[42] = 0; return b }), nil},
		"PCI flag of 2":       {resign(func(b []byte) []byte { b[42] = 2; return b }), nil},
		"an empty text":       {resign(func(b []byte) []byte { b[50] = 0; return b }), nil},
		"a text that is long": {resign(func(b []byte) []byte { b[50] = 255; return b }), nil},
		"an escape":           {resign(func(b []byte) []byte { b[51] = 0x1b; return b }), nil},
		"not UTF-8":           {resign(func(b []byte) []byte { b[51] = 0xff; return b }), nil},
		"an echo too many":    {resign(func(b []byte) []byte { return append(b, 1) }), nil},
		"an echo too few":     {resign(func(b []byte) []byte { return b[:len(b)-1] }), nil},
		"no list of echoes":   {resign(func(b []byte) []byte { return b[:len(b)-25] }), nil},
	} {
		if _, err := k.open(c.b); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if _, err := newKeyring("c1", nil); err == nil {
		t.Error("a keyring of nothing")
	}
}

// A cluster's secret signs for no other cluster.
func TestKeysAreTheClusters(t *testing.T) {
	other, err := newKeyring("c2", [][]byte{secret("k")})
	if err != nil {
		t.Fatal(err)
	}
	k := testKeys(t, "k")
	b := other.seal(testFrame())
	copy(b[8:16], k.cluster[:])
	if _, err := k.open(b); !errors.Is(err, errForged) {
		t.Errorf("got %v", err)
	}
}

// FuzzFrame: what comes from the wire never breaks the parser; what it accepts has one encoding.
func FuzzFrame(f *testing.F) {
	k := testKeys(f, "k")
	f.Add(k.seal(testFrame()))
	f.Add(k.seal(frame{node: "n", host: "h", nic: "i", slot: "s"}))
	f.Add([]byte(frameMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := k.open(b); err == nil && len(b) < fixedBytes+tagBytes {
			t.Fatalf("%d bytes are a frame", len(b))
		}
		got, err := parseFrame(b) // as if a key had vouched for it
		if err != nil {
			return
		}
		// A member's bytes may differ in what parseFrame leaves to open: magic, version, length and cluster.
		again := k.seal(got)
		if len(again) != len(b)+tagBytes || !bytes.Equal(again[headBytes:len(b)], b[headBytes:]) || again[5] != b[5] {
			t.Fatalf("%x is read as %+v, which is written as %x", b, got, again)
		}
		back, err := k.open(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, back, allFields); diff != "" {
			t.Fatalf("(-first +again):\n%s", diff)
		}
	})
}

func BenchmarkFrameOpen(b *testing.B) {
	for _, echoes := range []int{2, 32} {
		b.Run(fmt.Sprintf("echoes=%d", echoes), func(b *testing.B) {
			k := testKeys(b, "k")
			f := testFrame()
			f.echoes = make([]echo, echoes)
			raw := k.seal(f)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := k.open(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkProbeSecond is one second of 4 NICs that hear 16 neighbours each: 16 ports with twins behind a switch, of
// which each NIC hears one frame in 2 s for each port.
func BenchmarkProbeSecond(b *testing.B) {
	k := testKeys(b, "k")
	now := time.Unix(1_700_000_000, 0)
	var ears []*ear
	for i := range 4 {
		ears = append(ears, newEar(envgen.CableNIC{NIC: envgen.NIC{Name: fmt.Sprint("nic", i)}, Slot: fmt.Sprint(i / 2)}, mac{2, byte(i)}, session(i+1)))
	}
	f := testFrame()
	f.echoes = make([]echo, 16)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		f.counter++
		for i, e := range ears {
			if (int(f.counter)+i)%4 == 0 {
				k.seal(e.next(f, 2, now))
			}
			for n := range 8 {
				f.session = session(100 + n + 8*(int(f.counter)%2))
				f.echoes[i] = echo{e.session, e.sent}
				heard, err := k.open(k.seal(f)) // the sealing is the neighbour's, and not ours to pay
				if err != nil {
					b.Fatal(err)
				}
				e.hear(heard, "n", nil, now)
			}
			e.expire(now)
		}
	}
}

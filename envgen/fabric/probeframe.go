package fabric

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"net"
	"time"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// A probe frame, numbers with the highest byte first. What stands before `session` lies at these offsets in every
// version to come, so that a node can tell a newer member from a non-member.
//
//	 0  4  "SPRK"
//	 4  1  version, 1
//	 5  1  every: seconds until the sender has echoed all it hears once more, 1-255
//	 6  2  length in bytes, tag included: short frames arrive with padding
//	 8  8  cluster: the first bytes of SHA-256 of its id
//	16  8  session: random, drawn when the sender opened this NIC
//	24  4  counter: 1, 2, 3, ... within the session
//	28  8  boot: the first bytes of SHA-256 of the boot id
//	36  6  MAC
//	42  8  PCI: 1 or 0 (then the rest is 0), domain (4), bus, device<<3|function, 0
//	50     node, host, NIC, slot: each a byte of length, 1-64, and UTF-8 text
//	       1 byte: how many echoes; each 12: session, counter
//	-32    HMAC-SHA256 of all before it
const (
	frameMagic   = "SPRK"
	frameVersion = 1
	headBytes    = 16
	fixedBytes   = 50
	echoBytes    = 12
	tagBytes     = sha256.Size
	// maxFrame is below the smallest MTU in use.
	maxFrame = 1400
	maxText  = 64
	// maxEchoes is how many fit beside texts of the greatest length.
	maxEchoes = (maxFrame - fixedBytes - 4*(1+maxText) - 1 - tagBytes) / echoBytes
)

type (
	mac     [6]byte
	digest8 [8]byte
	session uint64
	counter uint32
)

func (m mac) String() string { return net.HardwareAddr(m[:]).String() }

// shortDigest identifies a cluster or a boot in 8 bytes without revealing its id.
func shortDigest(text string) digest8 {
	sum := sha256.Sum256([]byte(text))
	return digest8(sum[:8])
}

// frame is what one port sends.
type frame struct {
	every   time.Duration
	session session
	counter counter
	boot    digest8
	mac     mac
	pci     *envgen.PCIAddress
	node    string
	host    string
	nic     string
	slot    string
	// echoes are the newest frames that the port heard: they prove to their senders that this frame is no older.
	echoes []echo
}

// echo identifies a frame.
type echo struct {
	session session
	counter counter
}

// Why a frame is not believed.
var (
	errNotProbe     = errors.New("not a cable probe")
	errOtherCluster = errors.New("a cable probe of another cluster")
	errNewer        = errors.New("a cable probe of another version of sparkrun")
	errForged       = errors.New("a cable probe that no key of this cluster signed")
)

// keyring signs and checks frames. Only one goroutine may use it.
type keyring struct {
	cluster digest8
	macs    []hash.Hash // the first signs
	sum     [tagBytes]byte
}

// newKeyring derives a key from each of the cluster's secrets, valid only for these frames and this cluster.
func newKeyring(cluster string, secrets [][]byte) (*keyring, error) {
	if len(secrets) == 0 {
		return nil, errors.New("derive cable probe keys: the cluster has no secret")
	}
	k := &keyring{cluster: shortDigest(cluster)}
	for _, s := range secrets {
		key, err := hkdf.Key(sha256.New, s, []byte(cluster), "sparkrun cable probe 1", sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("derive cable probe keys: %w", err)
		}
		k.macs = append(k.macs, hmac.New(sha256.New, key))
	}
	return k, nil
}

func (k *keyring) tag(h hash.Hash, text []byte) []byte {
	h.Reset()
	h.Write(text)
	return h.Sum(k.sum[:0])
}

// seal encodes and signs a frame. Texts that are too long are cut: kernel and configuration keep them short, so
// this only affects names of more than 64 bytes.
func (k *keyring) seal(f frame) []byte {
	b := make([]byte, fixedBytes, maxFrame)
	copy(b, frameMagic)
	b[4] = frameVersion
	b[5] = byte(min(max(f.every/time.Second, 1), 255))
	copy(b[8:], k.cluster[:])
	binary.BigEndian.PutUint64(b[16:], uint64(f.session))
	binary.BigEndian.PutUint32(b[24:], uint32(f.counter))
	copy(b[28:], f.boot[:])
	copy(b[36:], f.mac[:])
	if f.pci != nil {
		b[42] = 1
		binary.BigEndian.PutUint32(b[43:], f.pci.Domain)
		b[47], b[48] = f.pci.Bus, f.pci.Device<<3|f.pci.Function
	}
	for _, text := range []string{f.node, f.host, f.nic, f.slot} {
		text = text[:min(len(text), maxText)]
		for !utf8.ValidString(text) && len(text) > 0 { // the cut was within a character
			text = text[:len(text)-1]
		}
		b = append(append(b, byte(len(text))), text...)
	}
	echoes := f.echoes[:min(len(f.echoes), maxEchoes)]
	b = append(b, byte(len(echoes)))
	for _, e := range echoes {
		b = binary.BigEndian.AppendUint64(b, uint64(e.session))
		b = binary.BigEndian.AppendUint32(b, uint32(e.counter))
	}
	binary.BigEndian.PutUint16(b[6:], uint16(len(b)+tagBytes))
	return append(b, k.tag(k.macs[0], b)...)
}

// open checks a frame and decodes it. Nothing after the cluster's digest is read before a key has confirmed the
// frame.
func (k *keyring) open(b []byte) (frame, error) {
	if len(b) < headBytes || string(b[:4]) != frameMagic {
		return frame{}, errNotProbe
	}
	length := int(binary.BigEndian.Uint16(b[6:]))
	switch {
	case digest8(b[8:16]) != k.cluster:
		return frame{}, errOtherCluster
	case b[4] != frameVersion:
		return frame{}, errNewer
	case length < fixedBytes+tagBytes || length > len(b):
		return frame{}, errForged
	}
	text, tag := b[:length-tagBytes], b[length-tagBytes:length]
	for _, h := range k.macs {
		if hmac.Equal(k.tag(h, text), tag) {
			return parseFrame(text)
		}
	}
	return frame{}, errForged
}

// parseFrame decodes what a member signed. It is strict, so that a frame has only one encoding.
func parseFrame(b []byte) (frame, error) {
	bad := func(what string) (frame, error) {
		return frame{}, fmt.Errorf("parse cable probe: bad %s", what)
	}
	if len(b) < fixedBytes || b[5] == 0 {
		return bad("length or beat")
	}
	f := frame{
		every:   time.Duration(b[5]) * time.Second,
		session: session(binary.BigEndian.Uint64(b[16:])),
		counter: counter(binary.BigEndian.Uint32(b[24:])),
		boot:    digest8(b[28:36]),
		mac:     mac(b[36:42]),
	}
	switch pci := b[42:50]; {
	case pci[0] == 1 && pci[7] == 0:
		f.pci = &envgen.PCIAddress{Domain: binary.BigEndian.Uint32(pci[1:]), Bus: pci[5], Device: pci[6] >> 3,
			Function: pci[6] & 7}
	case digest8(pci) != digest8{}:
		return bad("PCI address")
	}
	b = b[fixedBytes:]
	for _, text := range []*string{&f.node, &f.host, &f.nic, &f.slot} {
		if len(b) == 0 || b[0] == 0 || b[0] > maxText || len(b) < 1+int(b[0]) {
			return bad("text")
		}
		*text, b = string(b[1:1+b[0]]), b[1+b[0]:]
		if !plain.Is(*text) {
			return bad("text")
		}
	}
	if len(b) == 0 || int(b[0]) > maxEchoes || len(b) != 1+int(b[0])*echoBytes {
		return bad("list of echoes")
	}
	for b = b[1:]; len(b) > 0; b = b[echoBytes:] {
		f.echoes = append(f.echoes, echo{session(binary.BigEndian.Uint64(b)), counter(binary.BigEndian.Uint32(b[8:]))})
	}
	return f, nil
}

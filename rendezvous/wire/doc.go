// Package wire is the RPC between the CLI, the agents and the leader: the
// messages, the error codes, and the one rule of forwarding: a request is
// passed on at most once.
//
// Messages are the plain Go structs of this package and of the words it
// carries (launcher, rendezvous, envgen), encoded as CBOR. Fields may be added;
// none may change its meaning or be used again. The calls ride on Connect over
// HTTP/2: over the local unix socket for the CLI, over mutual TLS among nodes.
//
// It must not decide anything: handlers are functions given by the node.
package wire

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// codec encodes messages as CBOR (RFC 8949) under their json names.
type codec struct {
	enc cbor.EncMode
	dec cbor.DecMode
}

func newCodec() codec {
	enc, err := cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode()
	if err != nil {
		panic(err) // fixed options: wrong here means wrong always
	}
	dec, err := cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF, // two values for one field: somebody's game
		MaxNestedLevels:  32,
		MaxArrayElements: 1 << 20,
		MaxMapPairs:      1 << 16,
	}.DecMode()
	if err != nil {
		panic(err)
	}
	return codec{enc: enc, dec: dec}
}

var theCodec = newCodec()

func (codec) Name() string                    { return "cbor" }
func (c codec) Marshal(m any) ([]byte, error) { return c.enc.Marshal(bare(m)) }
func (c codec) Unmarshal(b []byte, m any) error {
	if err := c.dec.Unmarshal(b, bare(m)); err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	return nil
}

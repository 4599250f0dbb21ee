package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/fxamacker/cbor/v2"

	"github.com/sparkrun/sparkrun/launcher"
)

// maxMessage bounds one message in bytes. Log chunks are far smaller; a ledger
// of a node with a thousand ranks is about 200 kB.
const maxMessage = 4 << 20

// maxManifest bounds a message between members that lists the files of a model or a dataset: some 300,000.
const maxManifest = 64 << 20

// maxUnauthenticated bounds what a caller without a certificate may send.
const maxUnauthenticated = 64 << 10

// mimeCBOR marks requests of this program. All others are the JSON face's.
const mimeCBOR = "application/cbor"

// codec encodes messages as CBOR (RFC 8949) under their json names.
type codec struct {
	enc cbor.UserBufferEncMode
	dec cbor.DecMode
}

func newCodec() codec {
	enc, err := cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.UserBufferEncMode()
	if err != nil {
		panic(err) // fixed options: they are always valid or never
	}
	dec, err := cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF, // two values for one field are an attack
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

func (c codec) Marshal(m any) ([]byte, error) { return c.enc.Marshal(m) }
func (c codec) Unmarshal(b []byte, m any) error {
	if err := c.dec.Unmarshal(b, m); err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	return nil
}

// A stream is a row of frames: a kind, the length in 4 bytes, big endian, and the
// content. Its last one is frameEnd: a stream that ends without one was cut.
const (
	frameMessage = 'm'
	frameEnd     = 'e' // empty, or the failure as JSON
	frameHead    = 5
)

// writeBuffers are for frames while they are written.
var writeBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// writeFrame writes a message in one piece.
func writeFrame(w io.Writer, m any) error {
	b := writeBuffers.Get().(*bytes.Buffer)
	defer writeBuffers.Put(b)
	b.Reset()
	b.Write(make([]byte, frameHead))
	if err := theCodec.enc.MarshalToBuffer(m, b); err != nil {
		return fmt.Errorf("write message: %w", err)
	}
	return writeHeaded(w, frameMessage, b.Bytes())
}

func writeHeaded(w io.Writer, kind byte, frame []byte) error {
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(len(frame)-frameHead))
	_, err := w.Write(frame)
	return err
}

// frames reads a stream.
type frames struct {
	from io.Reader
	buf  []byte
}

// keepBuffer is the largest buffer in bytes that a stream keeps which its messages do not fill.
const keepBuffer = 4 << 10

// next reads a message into m, whose launcher.Bytes are valid until the next call. At the stream's end it gives
// io.EOF, or the failure that the other side sent;
// io.ErrUnexpectedEOF if the stream was cut.
func (f *frames) next(m any) error {
	var head [frameHead]byte
	if _, err := io.ReadFull(f.from, head[:]); err != nil {
		return cut(err)
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxMessage {
		return fmt.Errorf("read message: it has %d bytes, and %d are the most", size, maxMessage)
	}
	if room := uint32(cap(f.buf)); room < size || room > max(keepBuffer, 2*size) {
		f.buf = make([]byte, size)
	}
	b := f.buf[:size]
	if _, err := io.ReadFull(f.from, b); err != nil {
		return cut(err)
	}
	switch head[0] {
	case frameMessage:
		return theCodec.Unmarshal(b, m)
	case frameEnd:
		if size == 0 {
			return io.EOF
		}
		var told failure
		if err := json.Unmarshal(b, &told); err != nil {
			return fmt.Errorf("read the end of a stream: %w", err)
		}
		return told.restored()
	}
	return fmt.Errorf("read message: unknown kind %q", head[0])
}

// cut marks the unannounced end of a connection.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return cutError{err}
}

type cutError struct{ error }

func (e cutError) Unwrap() error { return e.error }

// readBody reads a request or a reply that is one message.
func readBody(from io.Reader, limit int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(from, int64(limit)+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > limit:
		return nil, fmt.Errorf("read message: %w: it has more than %d bytes", launcher.ErrInvalid, limit)
	}
	return b, nil
}

// reply writes what answers one request.
type reply struct {
	w       http.ResponseWriter
	streams bool
	face    bool // JSON, and no frames
	begun   bool
}

// send writes a message: a whole reply, or the next of a stream. If that fails the other side has gone.
func (r *reply) send(m any) error {
	if r.streams {
		r.begin("")
		write := writeFrame
		if r.face {
			write = func(w io.Writer, m any) error { return faced(w, m, true) }
		}
		if err := write(r.w, m); err != nil {
			return gone(err)
		}
		return gone(http.NewResponseController(r.w).Flush())
	}
	var b bytes.Buffer
	var err error
	if r.face {
		err = faced(&b, m, false)
	} else {
		err = theCodec.enc.MarshalToBuffer(m, &b)
	}
	if err != nil {
		return fmt.Errorf("write message: %w", err)
	}
	r.begin(strconv.Itoa(b.Len()))
	_, err = r.w.Write(b.Bytes())
	return gone(err)
}

func (r *reply) begin(length string) {
	if r.begun {
		return
	}
	r.begun = true
	r.w.Header().Set("Content-Type", r.mime())
	if length != "" {
		r.w.Header().Set("Content-Length", length)
	}
	r.w.WriteHeader(http.StatusOK)
}

func (r *reply) mime() string {
	switch {
	case !r.face:
		return mimeCBOR
	case r.streams:
		return "application/jsonl"
	}
	return "application/json"
}

// end ends the reply, with err if it is not nil.
func (r *reply) end(err error) {
	switch {
	case err != nil && !r.begun:
		Refuse(r.w, err)
	case r.streams && r.face: // a stream that was cut shows in HTTP
		r.begin("")
		if err != nil {
			_ = faced(r.w, map[string]failure{"error": failureOf(err)}, true)
		}
	case r.streams:
		r.begin("")
		frame := make([]byte, frameHead)
		if err != nil {
			b, _ := json.Marshal(failureOf(err))
			frame = append(frame, b...)
		}
		if writeHeaded(r.w, frameEnd, frame) == nil {
			_ = http.NewResponseController(r.w).Flush()
		}
	}
}

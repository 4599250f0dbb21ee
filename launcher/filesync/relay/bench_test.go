package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"
)

// processor is the time that this process has used.
func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perGB measures what n bytes cost.
func perGB(b *testing.B, n int, once func()) {
	b.Helper()
	once()
	before := processor()
	for b.Loop() {
		once()
	}
	gb := float64(n) * float64(b.N) / 1e9
	b.ReportMetric((processor()-before).Seconds()/gb, "cpu-s/GB")
	b.ReportMetric(gb/b.Elapsed().Seconds(), "GB/s")
	b.ReportMetric(0, "ns/op")
}

const benchBytes = 16 * ChunkBytes

// BenchmarkStages says what each step costs by itself, in processor seconds a GB; both ends
// where there are two.
func BenchmarkStages(b *testing.B) {
	content := randomBytes(ChunkBytes)
	b.Run("sha256", func(b *testing.B) { perGB(b, ChunkBytes, func() { sha256.Sum256(content) }) })
	b.Run("blake3", func(b *testing.B) { perGB(b, ChunkBytes, func() { blake3.Sum256(content) }) })
	b.Run("write and sync", func(b *testing.B) {
		p, err := OpenPart(filepath.Join(b.TempDir(), "x"), "x", benchBytes)
		if err != nil {
			b.Fatal(err)
		}
		defer p.Close()
		perGB(b, benchBytes, func() {
			p.n, p.synced = 0, 0
			keepBench(b, p, content)
		})
	})
	b.Run("read", func(b *testing.B) {
		p, err := OpenPart(filepath.Join(b.TempDir(), "x"), "x", benchBytes)
		if err != nil {
			b.Fatal(err)
		}
		defer p.Close()
		keepBench(b, p, content)
		buf := make([]byte, readBytes)
		perGB(b, benchBytes, func() {
			p.Drop(0, benchBytes)
			for at := int64(0); at < benchBytes; at += readBytes {
				_, _ = p.ReadAt(buf, at)
			}
		})
	})
	for _, secret := range []bool{false, true} {
		name := map[bool]string{false: "tcp", true: "tls"}[secret]
		b.Run(name, func(b *testing.B) {
			l, dial := sockets(b, secret)
			defer l.Close()
			go func() {
				c, err := l.Accept()
				for err == nil {
					_, err = c.Write(content[:readBytes])
				}
			}()
			c, err := dial(b.Context(), 0)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, readBytes)
			perGB(b, benchBytes, func() {
				for range benchBytes / readBytes {
					_, _ = io.ReadFull(c, buf)
				}
			})
		})
	}
}

func keepBench(b *testing.B, p *FilePart, chunk []byte) {
	b.Helper()
	for off := int64(0); off < benchBytes; off += ChunkBytes {
		if _, err := p.WriteAt(chunk, off); err != nil {
			b.Fatal(err)
		}
		if err := p.Keep(Sum{}, nil); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Sync(); err != nil {
		b.Fatal(err)
	}
}

// sockets are a listener on the loopback, and what dials it.
func sockets(b *testing.B, secret bool) (net.Listener, func(context.Context, int) (net.Conn, error)) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	dial := func(ctx context.Context, _ int) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}
	if !secret {
		return l, dial
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(crand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		b.Fatal(err)
	}
	server := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"sparkrun-bulk/1"},
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}}
	client := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: server.NextProtos, InsecureSkipVerify: true}
	return tls.NewListener(l, server), func(ctx context.Context, k int) (net.Conn, error) {
		raw, err := dial(ctx, k)
		if err != nil {
			return nil, err
		}
		c := tls.Client(raw, client)
		return c, c.HandshakeContext(ctx)
	}
}

// plainly hides from http.Server which protocol TLS has agreed on.
type plainly struct{ net.Listener }

func (l plainly) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

// BenchmarkHop takes a file from one member to the next on this machine: disk, TLS, BLAKE3,
// disk. Beside it a copy by one plain connection, without any sum, which the kernel makes.
func BenchmarkHop(b *testing.B) {
	dir := b.TempDir()
	content := randomBytes(ChunkBytes)
	whole := sha256.New()
	src, err := OpenPart(filepath.Join(dir, "src"), "x", benchBytes)
	if err != nil {
		b.Fatal(err)
	}
	defer src.Close()
	keepBench(b, src, content)
	sum := sumOf(b, src.cut, content)
	kept := Kept{}
	for range benchBytes / ChunkBytes {
		whole.Write(content)
		kept.Sums = append(kept.Sums, sum)
	}
	cfg := Config{Size: benchBytes, SHA256: hexOf(whole.Sum(nil)), Part: src, Kept: kept, Chain: make([]Member, 1),
		Buffers: NewBuffers(3)}
	have, err := New(cfg)
	if err == nil {
		err = have.Run(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Run("relay", func(b *testing.B) {
		l, dial := sockets(b, true)
		srv := &http.Server{Handler: Handler(func(*http.Request, string) (Source, error) { return have, nil })}
		go func() { _ = srv.Serve(plainly{l}) }()
		defer srv.Close()
		client := NewClient(dial)
		defer client.CloseIdleConnections()
		cfg := cfg
		cfg.Kept, cfg.Self = Kept{}, 1
		cfg.Chain = []Member{{"src", Remote{client, "https://member", "x"}}, {}}
		perGB(b, benchBytes, func() {
			part, err := OpenPart(filepath.Join(dir, "dst"), time.Now().String(), benchBytes)
			if err != nil {
				b.Fatal(err)
			}
			cfg.Part = part
			f, err := New(cfg)
			if err == nil {
				err = errors.Join(f.Run(b.Context()), part.Close())
			}
			if err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("plain copy", func(b *testing.B) {
		l, dial := sockets(b, false)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.Copy(c, io.NewSectionReader(src.data, 0, benchBytes))
				c.Close()
			}
		}()
		perGB(b, benchBytes, func() {
			src.Drop(0, benchBytes)
			part, err := OpenPart(filepath.Join(dir, "dst"), time.Now().String(), benchBytes)
			if err != nil {
				b.Fatal(err)
			}
			c, err := dial(b.Context(), 0)
			if err == nil {
				_, err = io.CopyBuffer(part.data, struct{ io.Reader }{c}, make([]byte, readBytes))
				c.Close()
			}
			if err := errors.Join(err, unix.Fdatasync(int(part.data.Fd())), part.Close()); err != nil {
				b.Fatal(err)
			}
		})
	})
}

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func sample() Bundle {
	return Bundle{
		Manifest: Manifest{
			Format: Format, Made: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Sparkrun: "1.2.3", Host: "spark1", Redacted: Rules,
			Nodes: []Node{{Host: "spark1", ID: "a"}, {Host: "spark2", ID: "b", Missing: "it does not answer"}},
		},
		Cluster: map[string][]byte{"status.json": []byte("{}")},
		Files: map[string]map[string][]byte{"spark1": {
			"sys/class/infiniband/rocep1s0f0/device/0000:01:00.0/vendor": []byte("0x15b3\n"), "agent.log": nil,
		}},
	}
}

func TestWriteAndRead(t *testing.T) {
	var first, second bytes.Buffer
	if err := errors.Join(Write(&first, sample()), Write(&second, sample())); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same report twice, and the bytes differ")
	}
	got, err := Read(&first)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Bundle){
		"no name of a report's file": func(b *Bundle) { b.Files["spark1"]["../x"] = nil },
		"cluster/a":                  func(b *Bundle) { b.Cluster["a\nb"] = nil },
		"nodes/..":                   func(b *Bundle) { b.Nodes[0].Host = ".."; b.Files[".."] = b.Files["spark1"] },
		"more than 8 MiB":            func(b *Bundle) { b.Cluster["big"] = make([]byte, MaxFile+1) },
	} {
		b := sample()
		spoil(&b)
		if err := Write(io.Discard, b); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
}

// pack makes an archive that Write would not.
func pack(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	zw, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(zw)
	manifest, err := json.Marshal(sample().Manifest)
	if err != nil {
		t.Fatal(err)
	}
	entries = append([]tar.Header{{Name: manifestPath, Uname: string(manifest)}}, entries...)
	for _, h := range entries {
		content := []byte(h.Uname) // stands for the content
		h.Uname, h.Mode = "", 0o644
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(content); h.Typeflag == tar.TypeReg && err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestReadRefuses(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name} }
	tests := map[string]struct {
		data []byte
		want string
	}{
		"no archive":     {[]byte("hello"), "unexpected EOF"},
		"not gzip":       {[]byte("hello, this is a text and no archive"), "gzip"},
		"cut off":        {pack(t)[:40], "EOF"},
		"traversal":      {pack(t, file("sparkrun-report/nodes/spark1/../../../etc/passwd")), "no name of"},
		"absolute":       {pack(t, file("/etc/passwd")), "no name of"},
		"elsewhere":      {pack(t, file("etc/passwd")), "no name of"},
		"backslash":      {pack(t, file(`sparkrun-report\nodes`)), "no name of"},
		"control":        {pack(t, file("sparkrun-report/cluster/\x1b[2J")), "no name of"},
		"symlink":        {pack(t, tar.Header{Name: clusterPath + "a", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"}), "no regular file"},
		"hard link":      {pack(t, tar.Header{Name: clusterPath + "a", Typeflag: tar.TypeLink, Linkname: manifestPath}), "no regular file"},
		"device":         {pack(t, tar.Header{Name: clusterPath + "a", Typeflag: tar.TypeChar}), "no regular file"},
		"twice":          {pack(t, file(clusterPath+"a"), file(clusterPath+"a")), "twice"},
		"two manifests":  {pack(t, file(manifestPath)), "twice"},
		"another folder": {pack(t, file(root+"x/y")), "no part of"},
		"no path":        {pack(t, file(nodesPath+"spark1")), "no part of"},
		"an unknown node": {pack(t, file(nodesPath+"spark9/a")),
			`does not name the node "spark9"`},
		"a large file": {pack(t, tar.Header{Name: clusterPath + "a", Uname: strings.Repeat(" ", MaxFile+1)}), "more than 8 MiB"},
		"a bomb":       {bomb(t), "more than 256 MiB"},
		"holes":        {holes(t), "more than 256 MiB"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Read(bytes.NewReader(tc.data))
			if !errors.Is(err, ErrNoBundle) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// bomb is a small archive of many files that are large but not too large each.
func bomb(t *testing.T) []byte {
	var entries []tar.Header
	content := strings.Repeat("0", MaxFile)
	for i := range MaxTotal/MaxFile + 1 {
		entries = append(entries, tar.Header{Name: clusterPath + strings.Repeat("a", i+1), Uname: content})
	}
	return pack(t, entries...)
}

// holes is an archive of sparse files: what they unpack to is nowhere in the stream.
func holes(t *testing.T) []byte {
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	// archive/tar writes no sparse files: block is a header (POSIX.1-2001, ustar) and its content.
	block := func(name string, kind byte, content string) {
		var h [512]byte
		copy(h[:100], name)
		copy(h[100:], "0000644\x000000000\x000000000\x00"+fmt.Sprintf("%011o\x00%011o\x00", len(content), 0)+"        "+string(kind))
		copy(h[257:], "ustar\x0000")
		sum := 0
		for _, b := range h {
			sum += int(b)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		padding := make([]byte, (512-len(content)%512)%512)
		_, err := fmt.Fprintf(zw, "%s%s%s", h[:], content, padding)
		if err != nil {
			t.Fatal(err)
		}
	}
	record := func(key, value string) string {
		text := " " + key + "=" + value + "\n"
		return fmt.Sprint(len(text)+2) + text // its length in two digits is part of it
	}
	manifest, err := json.Marshal(sample().Manifest)
	if err != nil {
		t.Fatal(err)
	}
	block(manifestPath, '0', string(manifest))
	for i := range MaxTotal/MaxFile + 1 {
		name := clusterPath + strings.Repeat("a", i+1)
		block("x", 'x', record("GNU.sparse.major", "0")+record("GNU.sparse.minor", "1")+record("GNU.sparse.size", fmt.Sprint(MaxFile))+
			record("GNU.sparse.numblocks", "1")+record("GNU.sparse.map", fmt.Sprintf("%d,0", MaxFile)))
		block(name, '0', "")
	}
	zw.Write(make([]byte, 1024)) // the end
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestReadRefusesOtherFormats(t *testing.T) {
	for _, manifest := range []string{`{"format":0}`, `{"format":2}`, `{"format":1,"nodes":[{"host":"a"},{"host":"a"}]}`, `{"format":1,"nodes":[{"host":""}]}`} {
		var out bytes.Buffer
		zw := gzip.NewWriter(&out)
		tw := tar.NewWriter(zw)
		err := tw.WriteHeader(&tar.Header{Name: manifestPath, Typeflag: tar.TypeReg, Size: int64(len(manifest)), Mode: 0o644})
		_, werr := tw.Write([]byte(manifest))
		if err = errors.Join(err, werr, tw.Close(), zw.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(&out); !errors.Is(err, ErrNoBundle) {
			t.Errorf("%s: %v", manifest, err)
		}
	}
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		`level=INFO msg="node down" node=spark2`:                              "",
		"HF_TOKEN=abc def":                                                    "HF_TOKEN=[redacted] def",
		`{"env":["HF_TOKEN=abc","A=1"]}`:                                      `{"env":["HF_TOKEN=[redacted]","A=1"]}`,
		`{"password": "abc", "user": "ada"}`:                                  `{"password": "[redacted]", "user": "ada"}`,
		`msg="{\"api_key\":\"abc\",\"n\":1}"`:                                 `msg="{\"api_key\":\"[redacted]\",\"n\":1}"`,
		`{"env":["HF_TOKEN="],"n":{"a":"TOKEN="},"TOKEN=":"","KEY=":{"a":1}}`: "",
		`{"key":{"n":1},"token":12,"tokens":[1],"secret":null}`:               `{"key":{"n":1},"token":"[redacted]","tokens":[1],"secret":null}`,
		`{"text":"HF_TOKEN=\nabc \nhf_abcdefghijklmnop"}`:                     `{"text":"HF_TOKEN=\nabc \n[redacted]"}`,
		`{"text":"{\"a\":\"{\\\"token\\\":\\\"abc\\\"}\"}"}`:                  `{"text":"{\"a\":\"{\\\"token\\\":\\\"[redacted]\\\"}\"}"}`,
		`TOKEN="}abc" password=']x' 'token': 'y', "token": abc`:               `TOKEN="[redacted]" password='[redacted]' 'token': '[redacted]', "token": "[redacted]"`,
		"--api-key=abc --key=1 --monkey=2":                                    "--api-key=[redacted] --key=[redacted] --monkey=2",
		"joined with spk1.abcdefgh.ijklmnop at 10.0.0.1":                      "joined with [redacted] at 10.0.0.1",
		"curl -H 'Authorization: Bearer abcdefghijkl' x":                      "curl -H 'Authorization: Bearer [redacted]' x",
		"https://ada:hunter2@example.com/x":                                   "https://ada:[redacted]@example.com/x",
		"use hf_abcdefghijklmnop now":                                         "use [redacted] now",
		"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----":        "[redacted]",
		"-----BEGIN EC PRIVATE KEY-----\nMIIE":/* cut off */ "[redacted]",
		"keyring=4 NCCL_IB_HCA==rocep1s0f0 key: v": "keyring=4 NCCL_IB_HCA==rocep1s0f0 key: [redacted]",
		"guid 4cbb:4703:002e:bf42, fe80::1":        "",
	} {
		if want == "" {
			want = text
		}
		if got := string(Redact([]byte(text))); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}

func TestRedactArgs(t *testing.T) {
	args := []string{"vllm", "serve", "--api-key", "abc", "--token", "--port", "80", "--hf-token=x", "-p", "secret"}
	want := []string{"vllm", "serve", "--api-key", Redacted, "--token", "--port", "80", "--hf-token=" + Redacted, "-p", "secret"}
	if diff := cmp.Diff(want, RedactArgs(args)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSecretName(t *testing.T) {
	for name, want := range map[string]bool{
		"HF_TOKEN": true, "token": true, "AWS_SECRET_ACCESS_KEY": true, "PGPASSWORD_FILE": true, "DB_PASSWD": true, "OPENAI_API_KEY": true,
		"apiKey": true, "key": true, "ssh-key": true, "--api-key": true,
		"PATH": false, "NCCL_IB_HCA": false, "KEYBOARD": false, "MONKEY": false, "TORCHELASTIC_RUN_ID": false,
	} {
		if SecretName(name) != want {
			t.Errorf("%s: %v, want %v", name, !want, want)
		}
	}
}

// Whatever an archive holds, it is refused, or is a report that can be written and read again.
func FuzzRead(f *testing.F) {
	var whole bytes.Buffer
	if err := Write(&whole, sample()); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes(), false)
	f.Add(pack(f, tar.Header{Name: clusterPath + "a", Typeflag: tar.TypeSymlink, Linkname: "x"}), false)
	// Most of what chance makes is no gzip: the tar below it is fuzzed by itself.
	zr, err := gzip.NewReader(bytes.NewReader(whole.Bytes()))
	if err != nil {
		f.Fatal(err)
	}
	plain, err := io.ReadAll(zr)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain, true)
	f.Fuzz(func(t *testing.T, data []byte, zip bool) {
		if zip {
			var packed bytes.Buffer
			zw, err := gzip.NewWriterLevel(&packed, gzip.NoCompression)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := zw.Write(data); err != nil {
				t.Fatal(err)
			}
			if err := zw.Close(); err != nil {
				t.Fatal(err)
			}
			data = packed.Bytes()
		}
		b, err := Read(bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, ErrNoBundle) {
				t.Errorf("another kind of error: %v", err)
			}
			return
		}
		var again bytes.Buffer
		if err := Write(&again, b); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if _, err := Read(&again); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}

// No secret of a known name or form stays in a text, and JSON stays JSON.
func FuzzRedact(f *testing.F) {
	f.Add(`{"a":"HF_TOKEN=x"}`)
	f.Add(`["--api-key","x\"y","https://a:b@c/"]`)
	f.Fuzz(func(t *testing.T, text string) {
		got := Redact([]byte(text))
		if json.Valid([]byte(text)) && !json.Valid(got) {
			t.Errorf("%s\nwas JSON and is\n%s", text, got)
		}
		planted := Redact([]byte("HF_TOKEN=hunter2hunter2 " + text))
		if bytes.Contains(planted, []byte("hunter2hunter2")) && !strings.Contains(text, "hunter2") {
			t.Errorf("a secret before %q stays", text)
		}
	})
}

package modelcache

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
)

// writer is the process that TestKillNine kills: it goes on with a part, and tells where it is.
func writer(dir string) {
	c, err := Open(Config{Dir: dir})
	if err != nil {
		panic(err)
	}
	p, err := c.Begin(repo, lfs("model.safetensors", big))
	if err != nil {
		panic(err)
	}
	for at := p.Prefix(); at < int64(len(big)); at += 1 << 19 {
		if at%ChunkBytes == 0 { // the saver, which follows behind, would be killed each time
			if err := p.save(); err != nil {
				panic(err)
			}
		}
		fmt.Println(at)
		if _, err := p.Write(big[at:min(at+1<<19, int64(len(big)))]); err != nil {
			panic(err)
		}
	}
	if err := p.Finish(false); err != nil {
		panic(err)
	}
	fmt.Println("done")
}

// A process that is killed again and again has never a wrong byte in what it goes on from, and ends.
func TestKillNine(t *testing.T) {
	c := open(t, Config{})
	r := rand.New(rand.NewPCG(1, 2))
	for round := 0; ; round++ {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "MODELCACHE_TEST_WRITER="+c.cfg.Dir)
		out, err := cmd.StdoutPipe()
		must(t, errors.Join(err, cmd.Start()))
		lines, done := bufio.NewScanner(out), false
		for n := r.IntN(70); n >= 0 && lines.Scan(); n-- {
			done = done || lines.Text() == "done"
		}
		must(t, cmd.Process.Kill())
		for lines.Scan() {
			done = done || lines.Text() == "done"
		}
		_ = cmd.Wait()
		if done {
			break
		}
		if round > 100 {
			t.Fatal("it comes to no end")
		}
		if _, ok := c.blob(repo, lfs("", big).SHA256); ok { // killed between the blob and its word
			break
		}
		p := begin(t, c, lfs("model.safetensors", big))
		got := make([]byte, p.Prefix())
		_, err = p.ReadAt(got, 0)
		if must(t, err); !bytes.Equal(got, big[:len(got)]) {
			t.Fatalf("round %d: wrong bytes before %d", round, len(got))
		}
		for i, sum := range p.Sums() {
			if sum != SumOf(chunk(i)) {
				t.Fatalf("round %d: wrong sum of chunk %d", round, i)
			}
		}
		crash(p)
	}
	got, err := os.ReadFile(c.at("blobs", lfs("", big).SHA256))
	if must(t, err); !bytes.Equal(got, big) {
		t.Error("wrong content")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

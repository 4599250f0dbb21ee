package e2e

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var modelKills = struct {
	kills, bytes *int64
	seed         *uint64
}{
	flag.Int64("model-kills", 0, "how many agents TestModelKills kills"),
	flag.Int64("model-kills-bytes", 2e9, "how large its model is"),
	flag.Uint64("model-kills-seed", 1, "which agents, and when"),
}

// TestModelKills is scripts/soak_models: while a model comes to three machines, one agent after the other is killed,
// and begins again within 4 s. No byte may be wrong then, and none have come twice from outside but those of the two
// chunks that were under way at a kill.
func TestModelKills(t *testing.T) {
	kills, size := int(*modelKills.kills), *modelKills.bytes
	if kills == 0 {
		t.Skip("takes minutes: ./scripts/soak_models")
	}
	const small, middle = 800, 90 // with the large ones a page of the Hub's list
	large := (size - small*100_000 - middle*3_000_000) / 4
	const pace = 6 // seconds a kill; the outside is asked for four pieces at once
	l, hub := upWithHub(t, 3, []string{"--rate", fmt.Sprint(size / int64(kills) / pace / 4), "--made",
		fmt.Sprintf("org/mixed=4x%d,%dx3000000,%dx100000", large, middle, small)})
	var tree []struct {
		Path string
		Size int64
		OID  string
		LFS  *struct{ OID string }
	}
	answer := l.on("switch", "curl", "-sf", "http://"+hubAPI+"/api/models/org/mixed/tree/main").must(t).out
	check(t, json.Unmarshal([]byte(answer), &tree))
	var all int64
	for _, f := range tree {
		all += f.Size
	}

	random := rand.New(rand.NewPCG(*modelKills.seed, 0))
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
	began := time.Now()
	pull := l.start("spark2", "sparkrun", "model", "pull", "org/mixed", "--all")
	killed := 0
	for ; killed < kills && !pull.over(); killed++ {
		time.Sleep(upTo(4 * time.Second))
		host := fmt.Sprintf("spark%d", 1+random.IntN(3))
		l.do("kill", host, "--agent")
		away := upTo(4 * time.Second)
		t.Logf("after %5.1f s %s is killed, for %.1f s; %4.0f MB have come from outside", time.Since(began).Seconds(), host,
			away.Seconds(), float64(hub.sent())/1e6)
		time.Sleep(away)
		l.do("start", host, "--agent")
	}
	got := pull.within(time.Hour).must(t)
	t.Logf("%d kills, %d files, %d bytes, %.1f s; it said:\n%s", killed, len(tree), all, got.took.Seconds(), got.err)
	if killed < kills {
		t.Errorf("it was over after %d kills", killed)
	}
	sent := hub.sent()
	t.Logf("from outside %d bytes came, %.4f of the model's; %.2f chunks a kill more than once", sent,
		float64(sent)/float64(all), float64(sent-all)/modelChunk/float64(max(killed, 1)))
	if sent < all || sent > all+int64(killed)*2*modelChunk {
		t.Errorf("%d bytes came from outside, want %d and two chunks a kill at most", sent, all)
	}
	for i := 1; i <= 3; i++ {
		dir := fmt.Sprintf("/var/tmp/sparkrun-lab/%s/hosts/spark%d/lib/models/models--org--mixed/snapshots/%s", l.name, i,
			filepath.Base(got.out[:len(got.out)-1]))
		wrong := 0
		for _, f := range tree {
			h, want := sha1.New(), f.OID
			if f.LFS != nil {
				h, want = sha256.New(), f.LFS.OID
			} else {
				fmt.Fprintf(h, "blob %d\x00", f.Size)
			}
			if err := sumIs(h, filepath.Join(dir, f.Path), want); err != nil {
				wrong++
				t.Errorf("spark%d: %v", i, err)
			}
		}
		t.Logf("spark%d: %d files of %d are right", i, len(tree)-wrong, len(tree))
	}
}

// sumIs reads a file, and compares.
func sumIs(h hash.Hash, path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != want {
		return fmt.Errorf("%s has the sum %s, want %s", path, sum, want)
	}
	return nil
}

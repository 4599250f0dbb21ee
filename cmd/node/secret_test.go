package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// inMemory gives every host a folder in memory for what must not be written to a disk.
func inMemory(t *testing.T) func(*Config) {
	return func(c *Config) {
		dir, err := os.MkdirTemp("/dev/shm", "sparkrun-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		c.Paths.Run = dir
	}
}

// sealKeys are the keys that this machine has, the ones of before included.
func (h *host) sealKeys() trust.Sealer {
	h.t.Helper()
	keyring, err := trust.LoadGossipKeys(h.cfg.Paths.trust())
	retired, err2 := trust.LoadRetired(h.cfg.Paths.trust())
	s, err3 := trust.NewSealer(keyring, retired)
	if err := errors.Join(err, err2, err3); err != nil {
		h.t.Fatal(err)
	}
	return s
}

// A job's secret opens for its later tries when the gossip key is another, on the machine that it ran on and on its
// spare one, and on one that joined after the change. The machine that was taken out opens nothing that is sealed from then on. The key of
// before goes once no job needs it.
func TestSecretsOutliveRotation(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 4, inMemory(t))
	one, two, three, gone := c.hosts[0], c.hosts[1], c.hosts[2], c.hosts[3]
	one.waitVoters(3)
	cl := one.client()
	defer cl.Close()

	// Each try says what it found, and fails when it is told to.
	dir := t.TempDir()
	witness := filepath.Join(dir, "witness")
	said := func() string {
		b, _ := os.ReadFile(witness)
		return strings.Join(strings.Fields(string(b)), " ")
	}
	job := command(1, 1, `echo "$HOST:$TOKEN:$(cat "$TOKEN_FILE")" >>`+witness+`
		until [ -e `+dir+`/fail.$TRY ]; do sleep 0.05; done
		exit 1`)
	job.On, job.Spare, job.MaxRestarts = []string{"spark2", "spark3"}, 1, 3
	job.OnPartition, job.NodeTimeout = launcher.EndOnPartition, 8*time.Second
	main := job.MainStage()
	main.Env = append(main.Env, launcher.Var{Name: "TRY", Value: launcher.Of(launcher.RestartCount), Source: "test"})
	sealed, err := wire.Seal.Call(t.Context(), cl, wire.SealRequest{Job: job.ID, Secrets: []wire.Plain{{Name: "TOKEN", Value: []byte("of-before")}}})
	if err != nil {
		t.Fatal(err)
	}
	job.Secrets = sealed.Secrets
	ended := make(chan *rendezvous.Outcome, 1)
	go func() { ended <- one.run(job) }()
	one.eventually("the first try runs", func() bool { return said() == "spark2:of-before:of-before" })

	theirs := gone.sealKeys() // as somebody may have copied them
	one.remove("spark4", true)
	if err := <-gone.done; err != nil {
		t.Error(err)
	}
	gone.stop = nil
	sameRing(t, 1, one, two, three)
	later, err := wire.Seal.Call(t.Context(), cl, wire.SealRequest{Job: "later", Secrets: []wire.Plain{{Name: "TOKEN", Value: []byte("of-after")}}})
	if err != nil {
		t.Fatal(err)
	}
	who := job.User
	if j, known := one.now().record.Job(job.ID); known {
		who = j.Spec.User
	}
	if _, err := theirs.Open(later.Secrets[0].Box, "later", who, "TOKEN"); !errors.Is(err, trust.ErrSealed) {
		t.Errorf("a machine that was taken out opens a later secret: %v", err)
	}
	if _, err := three.sealKeys().Open(later.Secrets[0].Box, "later", who, "TOKEN"); err != nil {
		t.Errorf("a member does not: %v", err)
	}

	fail := func(try string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "fail."+try), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fail("0")
	one.eventually("the second try has it, on the same machine", func() bool {
		return said() == "spark2:of-before:of-before spark2:of-before:of-before"
	})

	two.crash() // and by its lease the try there ends
	one.eventually("the third try has it, on the spare machine", func() bool {
		return said() == "spark2:of-before:of-before spark2:of-before:of-before spark3:of-before:of-before"
	})
	two.start()
	one.wait(3)

	late := c.newcomer("spark5")
	if _, err := Join(t.Context(), late.cfg, one.addr, one.token(wire.TokenRequest{Uses: 1, TTL: time.Minute})); err != nil {
		t.Fatal(err)
	}
	late.start()
	one.wait(4)
	if plain, err := late.sealKeys().Open(sealed.Secrets[0].Box, string(job.ID), who, "TOKEN"); err != nil || string(plain.Reveal()) != "of-before" {
		t.Errorf("a machine that joined after the change: %v", err)
	}

	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(job.ID), Grace: new(time.Duration)}); err != nil {
		t.Fatal(err)
	}
	<-ended
	one.remove("spark5", true)
	if err := <-late.done; err != nil {
		t.Error(err)
	}
	late.stop = nil
	sameRing(t, 2, one, two, three)
	for _, h := range []*host{one, two, three} {
		h.eventually("the key of the job that has ended is gone from "+h.cfg.Host, func() bool {
			retired, err := trust.LoadRetired(h.cfg.Paths.trust())
			return err == nil && len(retired) == 1 && retired[0].Number == 1
		})
	}
}

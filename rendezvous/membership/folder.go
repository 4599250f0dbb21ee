package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

var (
	// ErrNotEnrolled: this machine is not in a cluster.
	ErrNotEnrolled = errors.New("this machine is in no cluster")
	// ErrEnrolled: it is in a cluster already.
	ErrEnrolled = errors.New("this machine is in a cluster already")
	// ErrRunning: another agent has this machine's state open.
	ErrRunning = errors.New("another sparkrun agent runs on this machine")
)

// Folder is where a machine keeps what survives a reboot.
type Folder string

// Trust is the folder of its keys.
func (f Folder) Trust() string { return f.file("trust") }

// Addresses is the file with the last known addresses of members.
func (f Folder) Addresses() string { return f.file("addresses.json") }

func (f Folder) file(name string) string { return filepath.Join(string(f), name) }

const enrolmentFile = "node.json"

// Enrolment is what a member must remember besides keys: node.json.
type Enrolment struct {
	Node       launcher.NodeID `json:"node"`
	Cluster    string          `json:"cluster"`
	Host       string          `json:"host"`
	Management string          `json:"management,omitempty"` // as the user gave it
	// FabricPorts are as the user gave them.
	FabricPorts []string `json:"fabric_ports,omitempty"`
	RPCPort     int      `json:"rpc_port"`
	GossipPort  int      `json:"gossip_port"`
	// Witness: this node gets no ranks.
	Witness bool `json:"witness,omitempty"`
}

// Enrolment reads this machine's enrolment.
func (f Folder) Enrolment() (e Enrolment, err error) {
	b, err := os.ReadFile(f.file(enrolmentFile))
	if err != nil {
		return e, fmt.Errorf("read membership: %w", err)
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("read membership %s: %w", f.file(enrolmentFile), err)
	}
	return e, nil
}

// ClusterOf reads the cluster's id from the text of a node.json.
func ClusterOf(text []byte) (string, error) {
	var e Enrolment
	if err := json.Unmarshal(text, &e); err != nil {
		return "", fmt.Errorf("read membership: %w", err)
	}
	if e.Cluster == "" {
		return "", errors.New("read membership: it names no cluster")
	}
	return e.Cluster, nil
}

// save replaces node.json atomically and durably: after a power cut the node must still
// know its peers.
func (e Enrolment) save(f Folder) error {
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("write membership: %w", err)
	}
	if err := durable.Write(f.file(enrolmentFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write membership: %w", err)
	}
	return nil
}

// Enrolled tells whether this machine is in a cluster, whether its agent runs or not.
func (f Folder) Enrolled() (bool, error) {
	_, err := os.Stat(f.file(enrolmentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// MustBeFree refuses to enrol a machine twice: it would become a second node of
// the first cluster, or lose it.
func (f Folder) MustBeFree() error {
	enrolled, err := trust.Enrolled(f.Trust())
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s belongs to root: run it as root (sudo)", f)
	}
	if err != nil || !enrolled {
		return err
	}
	e, err := f.Enrolment()
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s, as %s", ErrEnrolled, e.Cluster, e.Host)
}

// Claim locks the folder for an enrolment. A running agent holds the lock, but "in a
// cluster already" is the better error, so this is checked first, and again under the
// lock, when nobody else can change it.
func (f Folder) Claim() (*os.File, error) {
	if err := f.MustBeFree(); err != nil {
		return nil, err
	}
	held, err := f.Lock()
	if err != nil {
		return nil, err
	}
	if err := f.MustBeFree(); err != nil {
		held.Close()
		return nil, err
	}
	return held, nil
}

// lockWait is how long Lock waits for an agent that was killed: the kernel releases its lock a moment later, and so
// does a child that it was forking.
const lockWait = time.Second

// Lock makes sure that only one agent uses the folder. The kernel releases it when the
// process ends, however that happens.
func (f Folder) Lock() (*os.File, error) {
	if err := os.MkdirAll(string(f), 0o755); err != nil {
		return nil, fmt.Errorf("open state folder: %w", err)
	}
	held, err := f.openLock()
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockWait); syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; {
		if time.Now().After(end) {
			held.Close()
			return nil, fmt.Errorf("%w (it holds %s)", ErrRunning, f)
		}
		time.Sleep(lockWait / 50)
	}
	return held, nil
}

func (f Folder) openLock() (*os.File, error) {
	held, err := os.OpenFile(f.file("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open state folder: %w", err)
	}
	return held, nil
}

// AwaitExit waits until no agent has the folder open.
func (f Folder) AwaitExit(ctx context.Context) error {
	held, err := f.openLock()
	if err != nil {
		return err
	}
	got := make(chan error, 1)
	go func() { // ends when the lock is free, or with the process
		got <- syscall.Flock(int(held.Fd()), syscall.LOCK_EX)
		held.Close()
	}()
	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Remove deletes an enrolment; run is the folder for what does not survive a reboot. The ranks' output is kept.
func (f Folder) Remove(run string) error {
	// The identity goes first: without it the rest does not count as a membership. The
	// fence goes too, because the leaders of another cluster may have lower terms.
	return errors.Join(os.RemoveAll(f.Trust()), removeFile(f.file(enrolmentFile)), failover.Remove(string(f), run),
		removeFile(f.Addresses()), removeFile(filepath.Join(run, "fence.json")))
}

func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

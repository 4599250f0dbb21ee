package trust

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sparkrun/sparkrun/launcher/durable"
)

// The files of a trust folder (0700), which has nothing else. Each is 0600 and replaced as a whole.
const (
	identityFile = "node.pem"     // key, certificate, CA certificate; written last: its presence is enrolment
	caFile       = "ca.pem"       // CA key and certificate; on voters and standbys only
	gossipFile   = "gossip.json"  // list of numbers and base64 keys, the one that encrypts first
	retiredFile  = "retired.json" // the same for former gossip keys; see Retired
	membersFile  = "roll.json"    // the member list from the last leader; on a client: what it knows about its cluster
	clientFile   = "client.pem"   // a client's key, certificate, CA certificate
)

const (
	gossipKeyBytes = 32      // AES-256
	maxFile        = 1 << 20 // bytes; ours have under 4 KiB
)

// SaveIdentity writes the identity and so completes an enrolment: save everything else of it first.
func SaveIdentity(dir string, id *Identity) error {
	return saveIdentity(dir, identityFile, id)
}

// LoadIdentity wraps fs.ErrNotExist if there is none. An expired identity loads.
func LoadIdentity(dir string) (*Identity, error) { return loadIdentity(dir, identityFile) }

// SaveClient saves a client's identity, which does not make the machine a member.
func SaveClient(dir string, id *Identity) error {
	return saveIdentity(dir, clientFile, id)
}

// LoadClient is LoadIdentity for a client.
func LoadClient(dir string) (*Identity, error) { return loadIdentity(dir, clientFile) }

func saveIdentity(dir, file string, id *Identity) error {
	text, err := marshalBundle(id.key, id.Cert, id.CA)
	if err != nil {
		return fmt.Errorf("save identity: %w", err)
	}
	if err := writeFile(dir, file, text); err != nil {
		return fmt.Errorf("save identity: %w", err)
	}
	return nil
}

func loadIdentity(dir, file string) (*Identity, error) {
	path := filepath.Join(dir, file)
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("load identity: %w", err)
	}
	key, certs, err := parseBundle(text, 2)
	if err != nil {
		return nil, fmt.Errorf("load identity %s: %w", path, err)
	}
	id, err := newIdentity(key, certs[0], certs[1])
	if err != nil {
		return nil, fmt.Errorf("load identity %s: %w", path, err)
	}
	return id, nil
}

// Enrolled says whether this machine belongs to a cluster. What a crash leaves behind before SaveIdentity is not an
// enrolment and may be overwritten: false, nil. An identity that exists but cannot be used is an error, never just
// false: enrolling again would make a second node of this one.
func Enrolled(dir string) (bool, error) {
	id, err := LoadIdentity(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && id.Role == RoleNode { // a client does not gossip
		_, err = LoadGossipKeys(dir)
	}
	if err != nil {
		return false, fmt.Errorf("check enrolment: %w (repair it, or remove %s to join again)", err, dir)
	}
	return true, nil
}

// SaveCA writes the CA with its key.
func SaveCA(dir string, ca *CA) error {
	text, err := ca.MarshalPEM()
	if err != nil {
		return fmt.Errorf("save CA: %w", err)
	}
	if err := writeFile(dir, caFile, text); err != nil {
		return fmt.Errorf("save CA: %w", err)
	}
	return nil
}

// ForgetCA removes the CA's key from a node that must not hold it any more.
func ForgetCA(dir string) error {
	if err := os.Remove(filepath.Join(dir, caFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget CA: %w", err)
	}
	return durable.SyncDir(dir)
}

// SaveMembers writes the member list, or what a client knows about its cluster, in whatever format.
func SaveMembers(dir string, text []byte) error {
	if err := writeFile(dir, membersFile, text); err != nil {
		return fmt.Errorf("save member list: %w", err)
	}
	return nil
}

// LoadMembers wraps fs.ErrNotExist if there is none.
func LoadMembers(dir string) ([]byte, error) {
	text, err := readFile(filepath.Join(dir, membersFile))
	if err != nil {
		return nil, fmt.Errorf("load member list: %w", err)
	}
	return text, nil
}

// LoadCA wraps fs.ErrNotExist on a node that does not hold the CA.
func LoadCA(dir string) (*CA, error) {
	path := filepath.Join(dir, caFile)
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	ca, err := ParseCA(text)
	if err != nil {
		return nil, fmt.Errorf("load CA %s: %w", path, err)
	}
	return ca, nil
}

// writeFile replaces a file so that a crash at any point leaves the whole old or the whole new content. Several
// processes may do so at once, as a user's commands do.
func writeFile(dir, name string, content []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o700); err != nil { // it may have existed
		return err
	}
	if err := durable.Write(filepath.Join(dir, name), content, 0o600); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(dir)) // dir may be new
}

// readFile refuses a file that others than its owner can access: a key that they may have read is worthless.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file, so that it cannot be replaced in between
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s: mode %04o lets others than its owner read or change a key: run `chmod 600 %s`, "+
			"and replace the key if they may have read it", path, mode, path)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxFile)
	}
	return content, nil
}

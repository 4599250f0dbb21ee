package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// enrolment is the order in which init and join write; each step alone must not count as being enrolled.
func enrolment(t testing.TB, dir string) []func() error {
	ca := newCA(t, clusterA)
	id := newMember(t, ca, node1, "spark1", RoleNode)
	return []func() error{
		func() error { return SaveCA(dir, ca) },
		func() error { return SaveGossipKeys(dir, Keyring{NewGossipKey(1)}) },
		func() error { return SaveRetired(dir, Retired{NewGossipKey(0)}) },
		func() error { return SaveIdentity(dir, id) },
	}
}

func enrol(t testing.TB, dir string) {
	t.Helper()
	for _, step := range enrolment(t, dir) {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStoreRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sparkrun", "trust")
	ca := newCA(t, clusterA)
	id := newMember(t, ca, node1, "spark1", RoleNode)
	keyring := Keyring{NewGossipKey(1), NewGossipKey(0)}
	if err := errors.Join(SaveCA(dir, ca), SaveGossipKeys(dir, keyring), SaveIdentity(dir, id)); err != nil {
		t.Fatal(err)
	}
	gotID, err := LoadIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	if gotID.Peer != id.Peer || !gotID.Cert.Equal(id.Cert) || !gotID.CA.Equal(id.CA) ||
		!gotID.key.value().Equal(id.key.value()) {
		t.Errorf("identity came back as %+v", gotID.Peer)
	}
	gotCA, err := LoadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !gotCA.key.value().Equal(ca.key.value()) || gotCA.Cluster != clusterA {
		t.Error("CA came back as another")
	}
	gotRing, err := LoadGossipKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(keyring, gotRing); diff != "" || keyring[0].Equal(keyring[1].Secret) {
		t.Errorf("keyring came back in another order or content")
	}
	if ok, err := Enrolled(dir); !ok || err != nil {
		t.Errorf("enrolled is %v, %v", ok, err)
	}
}

func TestFileModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trust")
	if err := os.Mkdir(dir, 0o755); err != nil { // as an installer may have made it
		t.Fatal(err)
	}
	// What an attacker or an old crash left under the temporary name lends its mode to nothing.
	leave(t, filepath.Join(dir, "."+identityFile+".new-1"), "x", 0o644)
	enrol(t, dir)
	got := map[string]fs.FileMode{}
	err := filepath.Walk(dir, func(path string, info fs.FileInfo, err error) error {
		got[info.Name()] = info.Mode().Perm()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]fs.FileMode{"trust": 0o700, identityFile: 0o600, caFile: 0o600, gossipFile: 0o600,
		retiredFile: 0o600}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}

	load := map[string]func() error{
		identityFile: func() error { _, err := LoadIdentity(dir); return err },
		caFile:       func() error { _, err := LoadCA(dir); return err },
		gossipFile:   func() error { _, err := LoadGossipKeys(dir); return err },
		retiredFile:  func() error { _, err := LoadRetired(dir); return err },
	}
	for name, load := range load {
		path := filepath.Join(dir, name)
		for _, mode := range []fs.FileMode{0o640, 0o604, 0o620, 0o602} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			if err := load(); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
				t.Errorf("%s with mode %04o: error is %v, want one with the remedy", name, mode, err)
			}
		}
		if err := os.Chmod(path, 0o400); err != nil {
			t.Fatal(err)
		}
		if err := load(); err != nil {
			t.Errorf("%s with mode 0400: %v", name, err)
		}
	}
}

func TestCrashBetweenWritesIsNoEnrolment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trust")
	steps := enrolment(t, dir)
	for i, step := range append([]func() error{func() error { return nil }}, steps[:len(steps)-1]...) {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if ok, err := Enrolled(dir); ok || err != nil {
			t.Errorf("after %d of %d writes: enrolled is %v, %v; want false and no error", i, len(steps), ok, err)
		}
	}
	// Dead in the middle of the last write.
	half := filepath.Join(dir, "."+identityFile+".new-1")
	leave(t, half, "-----BEGIN", 0o600)
	if ok, err := Enrolled(dir); ok || err != nil {
		t.Errorf("with a temporary file: enrolled is %v, %v; want false and no error", ok, err)
	}
	// A second attempt goes through and leaves nothing else behind.
	enrol(t, dir)
	if ok, err := Enrolled(dir); !ok || err != nil {
		t.Errorf("after the second attempt: enrolled is %v, %v", ok, err)
	}
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file stayed: %v", err)
	}
}

// leave makes a file that a crash left behind yesterday.
func leave(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	yesterday := time.Now().Add(-24 * time.Hour)
	if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chtimes(path, yesterday, yesterday)); err != nil {
		t.Fatal(err)
	}
}

// A client's commands run side by side, and each may save a new certificate or list: whoever reads sees a whole one.
func TestClientsFilesAreWrittenSideBySide(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	id := newMember(t, newCA(t, clusterA), node1, "book", RoleClient)
	save := func() error {
		return errors.Join(SaveClient(dir, id), SaveMembers(dir, []byte(strings.Repeat("x", 64<<10))))
	}
	if err := save(); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if err := save(); err != nil {
					t.Errorf("save: %v", err)
				}
				if _, err := LoadClient(dir); err != nil {
					t.Error(err)
				}
				if text, err := LoadMembers(dir); err != nil || len(text) != 64<<10 {
					t.Errorf("member list of %d bytes, %v", len(text), err)
				}
			}
		})
	}
	all.Wait()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("the folder holds %v, %v", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), info.Mode(), err)
		}
	}
}

func TestDamagedEnrolmentIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trust")
	enrol(t, dir)
	identity, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		if ok, err := Enrolled(dir); ok || err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: enrolled is %v, %v; want an error that names the folder", what, ok, err)
		}
	}
	for n := 0; n < len(identity)-1; n += 17 { // without its last line break it is still whole
		if err := os.WriteFile(filepath.Join(dir, identityFile), identity[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		refused("identity cut short")
	}
	if err := os.WriteFile(filepath.Join(dir, identityFile), identity, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"keyring empty": "", "keyring without keys": "[]", "key too short": `["c2hvcnQ="]`, "not base64": `["%%%"]`,
		"keyring null": "null", "keyring of numbers": "[[1,2]]",
	} {
		if err := os.WriteFile(filepath.Join(dir, gossipFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(what)
	}
	if err := os.Remove(filepath.Join(dir, gossipFile)); err != nil {
		t.Fatal(err)
	}
	refused("keyring lost")
}

func TestClientIsEnrolledWithoutGossip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trust")
	if err := SaveIdentity(dir, newMember(t, newCA(t, clusterA), laptop, "ann@laptop", RoleClient)); err != nil {
		t.Fatal(err)
	}
	if ok, err := Enrolled(dir); !ok || err != nil {
		t.Errorf("enrolled is %v, %v", ok, err)
	}
}

func TestLoadCATellsAbsentFromDamaged(t *testing.T) {
	dir := t.TempDir()
	_, err := LoadCA(dir)
	wantErr(t, "no CA on this node", err, fs.ErrNotExist)
	if err := os.WriteFile(filepath.Join(dir, caFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = LoadCA(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("damaged CA: error is %v", err)
	}
	if err := SaveGossipKeys(dir, nil); err == nil {
		t.Error("an empty keyring was saved")
	}
}

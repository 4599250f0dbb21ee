package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// secretsDir is where an attempt's ranks find their secrets: in memory, and removed with
// the attempt.
func (a *Agent) secretsDir(k launcher.Key) string {
	return filepath.Join(a.cfg.RunDir, "secrets", k.String())
}

// laySecrets opens a job's secrets and writes them for its user alone.
func (a *Agent) laySecrets(as launcher.Assignment, who login.User) error {
	if len(as.Spec.Secrets) == 0 {
		return nil
	}
	dir := a.secretsDir(as.Key)
	// The user may pass through, and nobody may list who has which secrets.
	if err := os.Mkdir(filepath.Dir(dir), 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("lay out secrets: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("lay out secrets: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("lay out secrets: %w", err)
	}
	for _, s := range as.Spec.Secrets {
		plain, err := a.cfg.Secrets.Open(as.Spec, s)
		if err == nil {
			err = giveFile(filepath.Join(dir, s.Name), plain, who)
		}
		if err != nil {
			return fmt.Errorf("lay out secret %s: %w", s.Name, err)
		}
	}
	if err := who.Own(dir); err != nil {
		return fmt.Errorf("lay out secrets: %w", err)
	}
	return os.Chmod(dir, 0o500)
}

func giveFile(path string, content []byte, who login.User) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close(), who.Own(path))
}

// secretEnv reads back what prepare has written, perhaps before a restart. The folder
// belongs to the user by now: it is read with the user's rights, and no link or pipe is
// followed there.
func (a *Agent) secretEnv(as launcher.Assignment, who login.User) (map[string]string, error) {
	env := map[string]string{}
	for _, s := range as.Spec.Secrets {
		var b []byte
		err := who.Do(func() (err error) {
			b, err = readPlain(filepath.Join(a.secretsDir(as.Key), s.Name))
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read secret %s: %w", s.Name, err)
		}
		// A file that holds a token ends with a newline, which is no part of the token.
		env[s.Name] = string(bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r")))
	}
	return env, nil
}

// readPlain reads a regular file, and refuses anything else.
func readPlain(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file", path)
	}
	return io.ReadAll(io.LimitReader(f, 2*launcher.MaxSecretBytes))
}

// withSecrets fills in the values of an environment's secrets.
func withSecrets(env []string, secrets map[string]string) {
	for i, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if value, is := secrets[name]; is {
			env[i] = name + "=" + value
		}
	}
}

func (a *Agent) dropSecrets(k launcher.Key) {
	if err := os.RemoveAll(a.secretsDir(k)); err != nil {
		a.cfg.Logger.Error("remove secrets", "job", k.Job, "error", err)
	}
}

// sweepSecrets removes the secrets of attempts that ended while no agent ran.
func (a *Agent) sweepSecrets() {
	entries, _ := os.ReadDir(filepath.Dir(a.secretsDir(launcher.Key{})))
	a.mu.Lock()
	alive := map[string]bool{}
	for k, t := range a.attempts {
		alive[k.String()] = t.snapshot().Phase != launcher.PhaseEnded
	}
	a.mu.Unlock()
	for _, e := range entries {
		if k, err := parseKey(e.Name()); err == nil && !alive[e.Name()] {
			a.dropSecrets(k)
		}
	}
}

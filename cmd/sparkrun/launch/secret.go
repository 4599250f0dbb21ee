package launch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// readSecrets reads the secrets of --secret, NAME or NAME=FILE, and puts their names into
// the job's spec. Only the agent gets the values.
func readSecrets(spec *launcher.Spec, wanted []string, getenv func(string) (string, bool)) ([]wire.Plain, error) {
	var out []wire.Plain
	size := 0
	for _, text := range wanted {
		secret, err := ReadSecret(text, getenv)
		if err != nil {
			return nil, err
		}
		if size += len(secret.Value); size > launcher.MaxSecretBytes {
			return nil, fmt.Errorf("--secret %s: %w: with it they take %d bytes, at most %d", secret.Name,
				launcher.ErrInvalid, size, launcher.MaxSecretBytes)
		}
		spec.Secrets = append(spec.Secrets, launcher.SealedSecret{Name: secret.Name})
		out = append(out, secret)
	}
	return out, spec.Validate()
}

// ReadSecret reads one: NAME, a variable, or NAME=FILE.
func ReadSecret(text string, getenv func(string) (string, bool)) (wire.Plain, error) {
	name, path, fromFile := strings.Cut(text, "=")
	value, err := readSecret(name, path, fromFile, getenv)
	return wire.Plain{Name: name, Value: value}, err
}

func readSecret(name, path string, fromFile bool, getenv func(string) (string, bool)) ([]byte, error) {
	var value []byte
	switch text, set := getenv(name); {
	case fromFile && (path == "" || path == "-"):
		return nil, fmt.Errorf("--secret %s=%s: %w: want a file", name, path, launcher.ErrInvalid)
	case fromFile:
		fi, err := os.Stat(path) // before reading: a device has no end
		if err == nil && (!fi.Mode().IsRegular() || fi.Size() > launcher.MaxSecretBytes) {
			return nil, fmt.Errorf("--secret %s=%s: %w: want a file of at most %d bytes", name, path,
				launcher.ErrInvalid, launcher.MaxSecretBytes)
		}
		if err == nil {
			value, err = os.ReadFile(path)
		}
		if err != nil {
			return nil, fmt.Errorf("--secret %s: %w", name, err)
		}
	case !set:
		return nil, fmt.Errorf("--secret %s: %w: it is not set here; set it, or write --secret %[1]s=FILE", name,
			launcher.ErrInvalid)
	default:
		value = []byte(text)
	}
	switch {
	case len(value) == 0:
		return nil, fmt.Errorf("--secret %s: %w: it is empty", name, launcher.ErrInvalid)
	case bytes.IndexByte(value, 0) >= 0:
		return nil, fmt.Errorf("--secret %s: %w: it holds a NUL byte, which no variable can", name, launcher.ErrInvalid)
	}
	return value, nil
}

// sealSecrets has this machine's agent seal the secrets into the spec.
func sealSecrets(ctx context.Context, s *wire.Client, spec *launcher.Spec, secrets []wire.Plain) error {
	if len(secrets) == 0 {
		return nil
	}
	res, err := wire.Seal.Call(ctx, s, wire.SealRequest{Job: spec.ID, User: spec.User, Secrets: secrets})
	if err != nil {
		return fmt.Errorf("seal secrets: %w", err)
	}
	spec.Secrets = res.Secrets
	return nil
}

package netplan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/durable"
)

// Disk is Files below a folder of the machine; "/" is its own configuration.
type Disk struct{ Root string }

func (d Disk) at(path string) string { return filepath.Join(d.Root, path) }

func (d Disk) Read(path string) ([]byte, fs.FileMode, error) {
	info, err := os.Stat(d.at(path))
	if err != nil {
		return nil, 0, err
	}
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(info, null) {
		return nil, fileMode, nil // a link to it masks a file of that name, and netplan reads it as empty too
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, 0, fmt.Errorf("read %s: no ordinary file of up to %d bytes", path, maxFile)
	}
	data, err := os.ReadFile(d.at(path))
	return data, info.Mode().Perm(), err
}

// Write writes a hidden file first, which netplan does not read.
func (d Disk) Write(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(d.at(path)), 0o700); err != nil {
		return err
	}
	return durable.Write(d.at(path), data, mode)
}

func (d Disk) Remove(path string) error {
	if err := os.Remove(d.at(path)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return durable.SyncDir(filepath.Dir(d.at(path)))
}

func (d Disk) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(d.at(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Command is the netplan program, for Config.Check and Config.Apply.
type Command struct {
	// Program is its path; default netplan, from PATH.
	Program string
}

// Check runs netplan generate on a copy of the files in a temporary folder.
func (c Command) Check(ctx context.Context, files []Source) error {
	root, err := os.MkdirTemp("", "sparkrun-netplan-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	for _, f := range files {
		if err := (Disk{root}).Write(f.Path, f.Data, fileMode); err != nil {
			return fmt.Errorf("copy %s: %w", f.Path, err)
		}
	}
	err = c.run(ctx, "generate", "--root-dir", root)
	if err != nil {
		// The messages name files of the copy; people know the originals.
		return errors.New(strings.ReplaceAll(err.Error(), root, ""))
	}
	return nil
}

// Apply runs netplan apply on the machine's own files.
func (c Command) Apply(ctx context.Context) error { return c.run(ctx, "apply") }

func (c Command) run(ctx context.Context, args ...string) error {
	program := c.Program
	if program == "" {
		program = "netplan"
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second // a child of it may hold its output
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s %s had not ended after %s: %s", program, args[0], time.Since(began).Round(time.Second),
			strings.TrimSpace(string(out)))
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w; install it: sudo apt-get install netplan.io", err)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

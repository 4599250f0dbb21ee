// Command sbom reads which modules a Go program was linked from, out of the
// program itself, and writes them as a CycloneDX 1.6 bill of materials to standard
// output. The same program gives the same text: its serial number is made of the
// program's hash, and it says no time, for SOURCE_DATE_EPOCH is the build's.
//
// It must not guess: a module without a version or a sum is an error.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/google/uuid"
)

func main() {
	version := flag.String("version", "", "version of the program")
	licenses := flag.String("licenses", "", "file to write the modules' licenses to")
	flag.Parse()
	if flag.NArg() != 1 || *version == "" {
		fmt.Fprintln(os.Stderr, "usage: sbom -version VERSION [-licenses FILE] PROGRAM")
		os.Exit(2)
	}
	if err := run(os.Stdout, flag.Arg(0), *version, *licenses); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, program, version, licenses string) error {
	b, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("read the modules of %s: %w", program, err)
	}
	bom, err := bomOf(info, version, sha256.Sum256(b))
	if err != nil {
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(bom); err != nil {
		return err
	}
	if licenses == "" {
		return nil
	}
	std := &debug.Module{Path: "std", Version: info.GoVersion}
	text, err := licensesOf(append([]*debug.Module{std}, info.Deps...), moduleDir)
	if err != nil {
		return err
	}
	return os.WriteFile(licenses, text, 0o644)
}

// The parts of https://cyclonedx.org/docs/1.6/json/ that are used.
type (
	bom struct {
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		Serial       string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Ref        string     `json:"bom-ref"`
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PURL       string     `json:"purl"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Alg     string `json:"alg"`
		Content string `json:"content"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref string   `json:"ref"`
		On  []string `json:"dependsOn,omitempty"`
	}
)

func bomOf(info *debug.BuildInfo, version string, sum [sha256.Size]byte) (bom, error) {
	program := component{
		Type: "application", Name: info.Main.Path, Version: version,
		PURL:   "pkg:golang/" + info.Main.Path + "@" + version,
		Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
	}
	program.Ref = program.PURL
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH", "CGO_ENABLED", "-trimpath", "-ldflags":
			program.Properties = append(program.Properties, property{"go:build:" + s.Key, s.Value})
		}
	}
	// The standard library is linked in like any other.
	std := component{Type: "library", Name: "std", Version: info.GoVersion, PURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	std.Ref = std.PURL
	components := []component{std}
	on := []string{std.Ref}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version == "" || m.Sum == "" {
			return bom{}, fmt.Errorf("module %s: the program has no version and sum of it: build it from a clean module cache", m.Path)
		}
		c := component{
			Type: "library", Name: m.Path, Version: m.Version, PURL: "pkg:golang/" + m.Path + "@" + m.Version,
			Properties: []property{{"go:sum", m.Sum}},
		}
		c.Ref = c.PURL
		components = append(components, c)
		on = append(on, c.Ref)
	}
	return bom{
		Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Serial:     "urn:uuid:" + uuid.NewSHA1(uuid.NameSpaceURL, sum[:]).String(),
		Metadata:   metadata{program},
		Components: components,
		// What is flat in a linked program is told flat: which module asked for which is go.mod's.
		Dependencies: []dependency{{Ref: program.Ref, On: on}},
	}, nil
}

// moduleDir is where the Go tool keeps a module's files.
func moduleDir(m *debug.Module) (string, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", m.Path)
	if m.Path == "std" {
		cmd = exec.Command("go", "env", "GOROOT")
	}
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", m.Path, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// licensesOf gives the texts that licenses ask to go along with a program. A
// module without one is an error: it must not be handed out.
func licensesOf(modules []*debug.Module, dir func(*debug.Module) (string, error)) ([]byte, error) {
	var text bytes.Buffer
	for _, m := range modules {
		d, err := dir(m)
		if err != nil {
			return nil, err
		}
		var files []string
		for _, pattern := range []string{"LICEN[CS]E*", "COPYING*", "NOTICE*", "PATENTS*"} {
			found, err := filepath.Glob(filepath.Join(d, pattern))
			if err != nil {
				return nil, err
			}
			files = append(files, found...)
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("module %s %s: no license in %s", m.Path, m.Version, d)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&text, "%s %s, %s\n%s\n%s\n\n", m.Path, m.Version, filepath.Base(f), strings.Repeat("=", 72), bytes.TrimSpace(b))
		}
	}
	return text.Bytes(), nil
}

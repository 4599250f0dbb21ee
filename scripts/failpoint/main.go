// Command failpoint builds a program in which each step of some packages is a
// place to die. The packages themselves have no hooks: their sources are
// copied with a call put before each statement, and built by `go build
// -overlay`, so that what is written tomorrow has its places too.
//
//	failpoint -o BINARY -points LIST [-at FOLDER] MAIN PACKAGE...
//
// MAIN and each PACKAGE are folders. LIST gets a line for each point: its
// number, FILE:LINE, function. What a built program does is told by the file
// FOLDER/order on the machine that it runs on:
//
//	trace            each process appends to FOLDER/trace the points that it
//	                 passes, each once, in this order
//	N agent,shim     who first passes point N renames the file to FOLDER/hit and
//	                 then sends KILL to the processes `sparkrun agent` and
//	                 `sparkrun shim DIR` that it sees, or to one kind of them;
//	                 `rank` stands for one between fork and exec. Its own comes last
//
// A statement without a call has no point: it changes nothing that outlives its
// process, and to die before it is to die before the next one that has a call.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	_ "embed"
)

// hook is what each package gets a copy of, under its own package clause. It is
// no Go file here, where nothing would call it.
//
//go:embed hook.go.txt
var hook string

func main() {
	out := flag.String("o", "", "the program to build")
	list := flag.String("points", "", "where to write the points")
	at := flag.String("at", "/tmp/failpoint", "folder of orders on the machine where the program runs")
	flag.Parse()
	if *out == "" || *list == "" || flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: failpoint -o BINARY -points LIST [-at FOLDER] MAIN PACKAGE...")
		os.Exit(2)
	}
	if err := build(*out, *list, *at, flag.Arg(0), flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "failpoint:", err)
		os.Exit(1)
	}
}

func build(out, list, at, program string, packages []string) error {
	tmp, err := os.MkdirTemp("", "failpoint-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var points []string
	replace := map[string]string{}
	put := func(path, text string) error {
		copied := filepath.Join(tmp, fmt.Sprintf("%d.go", len(replace)))
		replace[path] = copied
		return os.WriteFile(copied, []byte(text), 0o600)
	}
	for _, dir := range packages {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return err
		}
		name := ""
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text, pkg, found, err := instrument(path, src, len(points))
			if err != nil {
				return err
			}
			name, points = pkg, append(points, found...)
			if err := put(path, text); err != nil {
				return err
			}
		}
		if name == "" {
			return fmt.Errorf("instrument %s: no Go files there", dir)
		}
		text := strings.Replace(hook, "package hook", "package "+name, 1)
		text = strings.Replace(text, "/tmp/failpoint", at, 1)
		if err := put(filepath.Join(dir, "zz_failpoint.go"), text); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	file := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(list, []byte(strings.Join(points, "")), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-overlay", file, "-o", out, ".")
	cmd.Dir = program
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	cmd.Args[len(cmd.Args)-2] = out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", program, err)
	}
	return nil
}

// instrument puts points into one file, numbered from first on. Lines keep
// their numbers.
func instrument(path string, src []byte, first int) (text, pkg string, points []string, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		return "", "", nil, err
	}
	short := filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
	at := map[int]string{} // offset -> what to insert there
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			for _, s := range statements(n) {
				if !calls(s) {
					continue
				}
				p := fset.Position(s.Pos())
				at[p.Offset] = fmt.Sprintf("failpoint(%d); ", first+len(points))
				points = append(points, fmt.Sprintf("%d %s:%d %s\n", first+len(points), short, p.Line, fn.Name.Name))
			}
			return true
		})
	}
	offsets := make([]int, 0, len(at))
	for o := range at {
		offsets = append(offsets, o)
	}
	slices.Sort(offsets)
	var b strings.Builder
	last := 0
	for _, o := range offsets {
		b.Write(src[last:o])
		b.WriteString(at[o])
		last = o
	}
	b.Write(src[last:])
	return b.String(), file.Name.Name, points, nil
}

// statements are those that n holds in a row.
func statements(n ast.Node) []ast.Stmt {
	switch n := n.(type) {
	case *ast.BlockStmt:
		return slices.DeleteFunc(slices.Clone(n.List), func(s ast.Stmt) bool {
			switch s.(type) {
			case *ast.CaseClause, *ast.CommClause: // of a switch: no place for a statement
				return true
			}
			return false
		})
	case *ast.CaseClause:
		return n.Body
	case *ast.CommClause:
		return n.Body
	}
	return nil
}

// calls tells whether a statement itself, without the blocks within it, calls
// anything or passes something on.
func calls(s ast.Stmt) bool {
	found := false
	ast.Inspect(s, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			// The cases of a switch belong to its head: they are tried in turn.
			if sw, ok := s.(*ast.SwitchStmt); !ok || n != sw.Body {
				return false
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				ast.Inspect(e, func(n ast.Node) bool {
					_, call := n.(*ast.CallExpr)
					found = found || call
					return !found
				})
			}
			return false
		case *ast.CallExpr, *ast.SendStmt, *ast.GoStmt:
			found = true
		}
		return !found
	})
	return found
}

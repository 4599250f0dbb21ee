package node

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// A part is opened with parts that were opened before it, and with values: nothing is
// set later, and no func reaches for what comes after it.
func TestPartsAreOpenedInOrder(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "node.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]bool{}
	var open *ast.FuncDecl
	ast.Inspect(file, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.TypeSpec:
			if x.Name.Name == "node" {
				for _, f := range x.Type.(*ast.StructType).Fields.List {
					for _, name := range f.Names {
						fields[name.Name] = true
					}
				}
			}
		case *ast.FuncDecl:
			if x.Name.Name == "open" && x.Recv == nil {
				open = x
			}
		}
		return true
	})
	// own gives the field or method of n that an expression is.
	own := func(x ast.Node) string {
		if sel, ok := x.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == "n" {
				return sel.Sel.Name
			}
		}
		return ""
	}
	type opening struct {
		part string
		call *ast.CallExpr
	}
	var openings []opening
	ast.Inspect(open.Body, func(x ast.Node) bool {
		a, ok := x.(*ast.AssignStmt)
		if !ok || len(a.Rhs) != 1 {
			return true
		}
		call, ok := a.Rhs[0].(*ast.CallExpr)
		if !ok {
			return true
		}
		if of, ok := call.Fun.(*ast.SelectorExpr); ok && own(call.Fun) == "" {
			if name := of.Sel.Name; strings.HasPrefix(name, "Open") || strings.HasPrefix(name, "New") {
				part := own(a.Lhs[0]) // "" for one that node does not keep
				openings = append(openings, opening{part, call})
			}
		}
		return true
	})
	if len(openings) < 8 {
		t.Fatalf("%d openings found in open", len(openings))
	}
	later := map[string]bool{}
	for _, o := range openings {
		later[o.part] = true
	}
	for _, o := range openings {
		ast.Inspect(o.call, func(x ast.Node) bool {
			switch name := own(x); {
			case name == "":
			case later[name]:
				t.Errorf("%s is opened with n.%s, which is opened after it", o.part, name)
			case !fields[name]:
				t.Errorf("%s is opened with n.%s: give it a part, or a value", o.part, name)
			}
			return true
		})
		delete(later, o.part)
	}
}

package fabric

import (
	"context"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/sparkrun/sparkrun/envgen/fabric/fabrictest"
)

// fixture is a machine of testdata.
type fixture struct {
	*fabrictest.Host
	links []Link
}

func loadFixture(t testing.TB, name string) fixture {
	t.Helper()
	fx := fixture{Host: fabrictest.Load(t, filepath.Join("testdata", name+".txtar"))}
	for _, l := range fx.Links {
		fx.links = append(fx.links, Link(l))
	}
	return fx
}

// reader reads the fixture in place of the machine, from memory where tree is nil.
func (fx fixture) reader(t testing.TB, tree fs.ReadLinkFS) *Reader {
	t.Helper()
	if tree == nil {
		tree = fx.Files
	}
	r, err := New(Config{
		FS:       fabrictest.Tree{ReadLinkFS: tree},
		Hostname: func() (string, error) { return "spark1", nil },
		Links:    func(context.Context) ([]Link, error) { return fx.links, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

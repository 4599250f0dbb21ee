package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// A script of the caller's folder is not in a container by itself.
func TestScriptOutsideOfContainers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mounts, args []string
		want         string
	}{
		"torchrun":               {nil, []string{"train.py", "--lr", "1"}, "train.py"},
		"python":                 {nil, []string{"python3", "./train.py"}, "./train.py"},
		"shown":                  {[]string{".:/workspace"}, []string{"train.py"}, ""},
		"itself shown":           {[]string{"train.py:/x/train.py:ro"}, []string{"train.py"}, ""},
		"another folder shown":   {[]string{"/data"}, []string{"train.py"}, "train.py"},
		"not here either":        {nil, []string{"other.py"}, ""},
		"an argument of options": {nil, []string{"serve", "--log", "train.py"}, ""},
		"a path of the image":    {nil, []string{"/opt/train.py"}, ""},
	} {
		if got := (ContainerOptions{Image: "i", Mounts: c.mounts}).outside(dir, c.args); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestContainerOfFlags(t *testing.T) {
	o := ContainerOptions{Image: "vllm-node", ImageMap: []string{"other=x", "vllm-node=r:5000/vllm:1"},
		Mounts: []string{"a:/a:ro"}}
	c, err := o.container("/work")
	want := &launcher.Container{Image: "r:5000/vllm:1",
		Mounts: []launcher.Mount{{Source: "/work/a", Target: "/a", ReadOnly: true}}}
	if diff := cmp.Diff(want, c); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	o.ImageMap = []string{"other=x"}
	if _, err := o.container("/work"); err == nil ||
		!strings.Contains(err.Error(), "--image-map other=x: it matches no --image: that is vllm-node") {
		t.Errorf("a map that matches nothing: %v", err)
	}
	if c, err := (ContainerOptions{}).container("/work"); c != nil || err != nil {
		t.Errorf("no image: %+v, %v", c, err)
	}
}

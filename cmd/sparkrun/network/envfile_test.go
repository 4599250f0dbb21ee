package network

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

// A shell reads back what was written, whatever is in it.
func TestWriteShell(t *testing.T) {
	values := []string{"=a,b", "it's", `$(reboot) "x" \n`, "two\nlines", "", "''"}
	var b bytes.Buffer
	for i, v := range values {
		if err := writeShell(&b, []envgen.Var{{Name: fmt.Sprintf("V%d", i), Value: v}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range values {
		fmt.Fprintf(&b, "printf '%%s|' \"$V%d\"\n", i)
	}
	out, err := exec.Command("sh", "-c", b.String()).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if diff := cmp.Diff(strings.Join(values, "|")+"|", string(out)); diff != "" {
		t.Error(diff)
	}
	if err := writeEnvFile(&bytes.Buffer{}, []envgen.Var{{Name: "A", Value: "x\ny"}}); err == nil ||
		!strings.Contains(err.Error(), "line break") {
		t.Errorf("a line break in an env file: %v", err)
	}
}

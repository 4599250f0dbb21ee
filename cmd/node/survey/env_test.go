package survey

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// The NCCL that the user tells of decides between the variables of old and new.
func TestVarsKnowNCCL(t *testing.T) {
	entry := envgen.Entry{Kind: envgen.NetworkManagement}
	if _, err := Vars(envgen.Inventory{}, entry, 2, launcher.Spec{NCCL: "2.28.9"}); err != nil {
		t.Error(err)
	}
	if _, err := Vars(envgen.Inventory{}, entry, 2, launcher.Spec{NCCL: "new"}); err == nil || !strings.Contains(err.Error(), "--nccl: ") {
		t.Errorf("a version that is none: %v", err)
	}
}

package survey

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
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

// A preview plans no rank on a witness, as the leader would not.
func TestPreviewPassesOverWitness(t *testing.T) {
	t.Parallel()
	st := wire.Status{Leader: "spark1", Nodes: []wire.NodeStatus{
		{ID: "a", Host: "pi", State: "ready", Witness: true}, {ID: "b", Host: "spark1", State: "ready"},
	}}
	plan, _, err := Preview(st, launcher.Spec{Nodes: 1})
	if err != nil || len(plan.Nodes) != 1 || plan.Nodes[0].Host != "spark1" {
		t.Errorf("%+v, %v", plan, err)
	}
	if plan, _, err = Preview(st, launcher.Spec{Nodes: 2}); err == nil {
		t.Errorf("two machines: %+v", plan)
	}
}

package launch

import (
	"crypto/rand"
	"encoding/hex"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

// rayToken makes the secret of a Ray cluster, unless the user gave one.
func rayToken(spec *launcher.Spec) ([]wire.Plain, error) {
	if spec.Stages[0].Name != workloads.RayHead ||
		slices.ContainsFunc(spec.Secrets, func(s launcher.SealedSecret) bool { return s.Name == workloads.RayToken }) {
		return nil, nil
	}
	token := make([]byte, 32)
	rand.Read(token) // cannot fail: crypto/rand would end the program
	spec.Secrets = append(spec.Secrets, launcher.SealedSecret{Name: workloads.RayToken})
	return []wire.Plain{{Name: workloads.RayToken, Value: []byte(hex.EncodeToString(token))}}, spec.Validate()
}

// rayCommandOnly are the ranks of a Ray job whose output launch shows; nil: all.
func rayCommandOnly(spec launcher.Spec) []int {
	if main := spec.MainStage(); spec.Stages[0].Name == workloads.RayHead && main.Name != workloads.RayHead {
		step := slices.IndexFunc(spec.Steps(), func(st launcher.Stage) bool { return st.Main })
		return []int{spec.FirstOf(step, 0)}
	}
	return nil
}

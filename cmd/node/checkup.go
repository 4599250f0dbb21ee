package node

import (
	"context"
	"errors"
	"os"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// hostReader reads the facts about this machine that are not about its NICs.
func hostReader(cfg Config) *doctor.Reader {
	return doctor.New(doctor.Config{
		Models: modelDir(cfg.Paths),
		Sysfs:  cfg.Paths.Sysfs, Ports: []int{cfg.RPCPort, cfg.GossipPort},
		Disks: map[string]string{"state": cfg.Paths.State, "output": cfg.Paths.logs(), "tmp": os.TempDir()},
	})
}

// DoctorAlone examines this machine without an agent.
func DoctorAlone(ctx context.Context, cfg Config, r wire.DoctorRequest, noAgent error) (wire.DoctorResponse, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return wire.DoctorResponse{}, err
	}
	_, inv, mgmt, err := hardware(ctx, cfg)
	if err != nil && !errors.Is(err, envgen.ErrNoManagement) {
		return wire.DoctorResponse{}, err
	}
	// A user who may not read these gets what a machine outside any cluster gets.
	m, _ := cfg.Paths.Folder().Enrolment()
	enrolled, err := cfg.Paths.Folder().Enrolled()
	return checkup.Alone{
		Host: cfg.Host, Addr: mgmt.Addr, Inventory: inv, Machine: hostReader(cfg), Witness: m.Witness,
		Enrolled: enrolled || err != nil, NoAgent: noAgent,
	}.Doctor(ctx, r)
}

// Survey reads this machine's hardware without an agent.
func Survey(ctx context.Context) (envgen.Inventory, error) {
	r, err := fabric.New(fabric.Config{Sysfs: DefaultPaths().Sysfs})
	if err != nil {
		return envgen.Inventory{}, err
	}
	return r.Read(ctx)
}

// Evidence gives this machine's part of a report without an agent.
func Evidence(ctx context.Context, send func(wire.Evidence) error) error {
	return checkup.Evidence(ctx, DefaultPaths().Sysfs, send)
}

package node

import (
	"context"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// seal makes of secrets that were typed here what a job's spec may carry.
func (n *node) seal(_ context.Context, c wire.Caller, r wire.SealRequest) (wire.SealResponse, error) {
	if c.Node != "" {
		return wire.SealResponse{}, fmt.Errorf("seal secrets: %w: they go to the agent of the machine where they were typed", wire.ErrDenied)
	}
	user, err := runsAs(c, r.User)
	if err != nil {
		return wire.SealResponse{}, err
	}
	s, err := n.sealer()
	if err != nil {
		return wire.SealResponse{}, err
	}
	return sealWith(s, r, user)
}

// sealer has the keys that this node holds now: they change when a member is removed.
func (n *node) sealer() (trust.Sealer, error) {
	keys, err := n.ring()
	if err != nil {
		return trust.Sealer{}, err
	}
	retired, err := n.retired()
	if err != nil {
		return trust.Sealer{}, err
	}
	return trust.NewSealer(keys, retired)
}

func (n *node) retired() (trust.Retired, error) { return trust.LoadRetired(n.cfg.Paths.trust()) }

// boxWords are what a secret is sealed for: in another job's spec, or another user's, the same box does not open.
func boxWords(job launcher.JobID, user, name string) []string {
	return []string{string(job), user, name}
}

// boxes are the secrets of jobs that have not ended.
func boxes(specs []launcher.Spec) (out []trust.Sealed) {
	for _, s := range specs {
		for _, x := range s.Secrets {
			out = append(out, trust.Sealed{Box: x.Box, Words: boxWords(s.ID, s.User, x.Name)})
		}
	}
	return out
}

func sealWith(s trust.Sealer, r wire.SealRequest, user string) (wire.SealResponse, error) {
	var res wire.SealResponse
	for _, p := range r.Secrets {
		box, err := s.Seal(trust.NewSecret(p.Value), boxWords(r.Job, user, p.Name)...)
		if err != nil {
			return res, err
		}
		res.Secrets = append(res.Secrets, launcher.SealedSecret{Name: p.Name, Box: box})
	}
	return res, nil
}

func openWith(s trust.Sealer, spec launcher.Spec, x launcher.SealedSecret) ([]byte, error) {
	plain, err := s.Open(x.Box, boxWords(spec.ID, spec.User, x.Name)...)
	if err != nil {
		return nil, fmt.Errorf("%w: launch the job again: it was sealed with a key that this machine does not have, as after `sparkrun leave`", err)
	}
	return plain.Reveal(), nil
}

// openSecret opens a secret for a job's ranks here.
func (n *node) openSecret(spec launcher.Spec, x launcher.SealedSecret) ([]byte, error) {
	s, err := n.sealer()
	if err != nil {
		return nil, err
	}
	return openWith(s, spec, x)
}

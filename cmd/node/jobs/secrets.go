package jobs

import (
	"context"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Secrets seals the secrets that jobs bring along, and opens them for their ranks here.
type Secrets struct {
	// sealer gives the current keys: they change when a member is removed.
	sealer func() (trust.Sealer, error)
}

// SecretsOf uses a member's keys, which are in a folder.
func SecretsOf(folder string) Secrets {
	return Secrets{func() (trust.Sealer, error) { return trust.LoadSealer(folder) }}
}

// SecretsAlone uses a new key that nobody else has.
func SecretsAlone() (Secrets, error) {
	s, err := trust.NewSealer(trust.Keyring{trust.NewGossipKey(0)}, nil)
	return Secrets{func() (trust.Sealer, error) { return s, nil }}, err
}

// Seal seals secrets that were typed here, for a job's spec.
func (x Secrets) Seal(_ context.Context, c wire.Caller, r wire.SealRequest) (wire.SealResponse, error) {
	if c.Node != "" {
		return wire.SealResponse{}, fmt.Errorf(
			"seal secrets: %w: they go to the agent of the machine where they were typed", wire.ErrDenied)
	}
	user, err := c.RunsAs(r.User)
	if err != nil {
		return wire.SealResponse{}, err
	}
	s, err := x.sealer()
	if err != nil {
		return wire.SealResponse{}, err
	}
	var res wire.SealResponse
	for _, p := range r.Secrets {
		box, err := s.Seal(trust.NewSecret(p.Value), trust.SecretWords(r.Job, user, p.Name)...)
		if err != nil {
			return res, err
		}
		res.Secrets = append(res.Secrets, launcher.SealedSecret{Name: p.Name, Box: box})
	}
	return res, nil
}

// Open opens a secret for a job's ranks here.
func (x Secrets) Open(spec launcher.Spec, sealed launcher.SealedSecret) ([]byte, error) {
	s, err := x.sealer()
	if err != nil {
		return nil, err
	}
	plain, err := s.Open(sealed.Box, trust.SecretWords(spec.ID, spec.User, sealed.Name)...)
	if err != nil {
		return nil, fmt.Errorf("%w: give the command again: "+
			"it was sealed with a key that this machine does not have, as after `sparkrun leave`", err)
	}
	return plain.Reveal(), nil
}

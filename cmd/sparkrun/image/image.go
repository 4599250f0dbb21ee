// Package image decides how `sparkrun image` reads and shows container images on their way to machines, for its
// commands and for launches.
//
// It must not know what an image is for, nor how it travels. A login is read and sealed here, and shown nowhere.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/oci"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// NewImageCmd makes `sparkrun image`.
func NewImageCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Have a container image on every machine",
		Long: `An image comes from its registry once, over one machine, and goes on from machine
to machine over the fabric while it arrives. Each machine's Docker has it in the end,
under the name that was asked for.`,
		Example: "  sparkrun image pull nvcr.io/nvidia/pytorch:25.10-py3 --all\n  sparkrun image ls",
	}
	app.Group(cmd)
	cmd.AddCommand(newPullCmd(a), newLsCmd(a))
	return cmd
}

// loginName is what a login is called where it is sealed.
const loginName = "REGISTRY_LOGIN"

// sealLogin has the agent seal what the user's docker knows of an image's registry: its configuration, or a helper
// that it names. Nil: it knows nothing.
func sealLogin(ctx context.Context, a *app.App, b *wire.Client, id launcher.JobID,
	ref string) (*launcher.SealedSecret, error) {
	named, err := oci.ParseRef(ref)
	if err != nil {
		return nil, app.Usagef("%v", err)
	}
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		a.Say(fmt.Sprintf("docker's logins are not used: %v", err))
		return nil, nil //nolint:nilerr // an image for everybody takes none
	}
	c, err := store.Get(ctx, credentials.ServerAddressFromRegistry(oci.Registry(named)))
	if err != nil {
		a.Say(fmt.Sprintf("docker's login to %s is not used: %v", oci.Registry(named), err))
		return nil, nil //nolint:nilerr // so, too
	}
	login := oci.Login{Username: c.Username, Password: c.Password, RefreshToken: c.RefreshToken,
		AccessToken: c.AccessToken}
	if login == (oci.Login{}) {
		return nil, nil
	}
	text, err := json.Marshal(login)
	if err != nil {
		return nil, err
	}
	res, err := wire.Seal.Call(ctx, b, wire.SealRequest{Job: id, Secrets: []wire.Plain{{Name: loginName, Value: text}}})
	if err == nil && len(res.Secrets) != 1 {
		err = errors.New("no answer")
	}
	if err != nil {
		return nil, fmt.Errorf("seal the login to %s: %w", oci.Registry(named), err)
	}
	return &res.Secrets[0], nil
}

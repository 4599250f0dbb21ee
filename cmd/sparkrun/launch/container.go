package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
)

// ContainerOptions are for launches whose ranks run in containers.
type ContainerOptions struct {
	Image, Pull, cache     string
	Mounts, Args, ImageMap []string
	Shm                    int64
}

// BindContainer binds the container flags.
func BindContainer(fs *pflag.FlagSet, o *ContainerOptions) {
	fs.StringVar(&o.Image, "image", "",
		"run each rank in a container of this image (`REF`), which every machine has or can pull")
	fs.Var(app.Choice{V: &o.Pull, Words: []string{"missing", "always", "never"}}, "pull",
		"when to ask a registry for --image (default: missing)")
	fs.StringArrayVar(&o.Mounts, "mount", nil,
		"show `SRC[:DST][:ro]`, a file or folder of each machine, to the containers; repeat for more")
	fs.StringVar(&o.cache, "model-cache", "",
		"a folder of each machine for Hugging Face's models, made where it is missing, or none (default: your "+
			"~/.cache/huggingface, or HF_HOME, where that is there)")
	fs.Var(app.Amount{N: &o.Shm}, "shm-size", "a /dev/shm of each container's own, such as 16G (default: the "+
		"machine's)")
	fs.StringArrayVar(&o.Args, "docker-arg", nil,
		"one more option of docker run, such as --docker-arg=--add-host=db:10.0.0.9; repeat for more")
	fs.StringArrayVar(&o.ImageMap, "image-map", nil, "use REF where --image says NAME: `NAME=REF`; repeat for more")
}

func (o ContainerOptions) check() error {
	for _, m := range o.ImageMap {
		if name, ref, ok := strings.Cut(m, "="); !ok || name == "" || ref == "" {
			return app.Usagef("--image-map %q: want NAME=REF, such as vllm-node=registry.local/vllm:25.10", m)
		}
	}
	for _, m := range o.Mounts {
		if strings.HasPrefix(m, "type=") { // docker's longer form
			return app.Usagef("--mount %s: write it as --mount SRC:DST, with :ro behind it where it is only read", m)
		}
	}
	_, err := container.ParseArgs(o.Args)
	return err
}

// NamesCache tells whether the user has said where models lie.
func (o ContainerOptions) NamesCache() bool { return o.cache != "" }

// NeedsImage refuses container options where there is no image.
func (o ContainerOptions) NeedsImage() error {
	if o.Image == "" {
		for flag, given := range map[string]bool{
			"--pull": o.Pull != "", "--mount": len(o.Mounts) > 0, "--shm-size": o.Shm != 0,
			"--docker-arg": len(o.Args) > 0, "--model-cache": o.cache != "",
			"--image-map": len(o.ImageMap) > 0,
		} {
			if given {
				return app.Usagef("%s: this is for containers: name their image with --image", flag)
			}
		}
	}
	return nil
}

// container is the container of the ranks; nil: they run on the host. A mount without a
// leading slash is relative to cwd, where there is one.
func (o ContainerOptions) container(cwd string) (*launcher.Container, error) {
	if o.Image == "" {
		return nil, nil
	}
	c := &launcher.Container{Image: o.Image, Pull: launcher.Pull(o.Pull), ShmBytes: o.Shm, Args: o.Args,
		ModelCache: o.cache}
	if c.ModelCache != "" && c.ModelCache != launcher.NoModelCache {
		m, err := launcher.ParseMount(c.ModelCache, cwd)
		if err != nil || m.Target != m.Source || m.ReadOnly {
			return nil, app.Usagef("--model-cache %q: want a folder's path, or none", c.ModelCache)
		}
		c.ModelCache = m.Source
	}
	mapped := len(o.ImageMap) == 0
	for _, m := range o.ImageMap {
		if name, ref, _ := strings.Cut(m, "="); name == o.Image {
			c.Image, mapped = ref, true
		}
	}
	if !mapped {
		return nil, app.Usagef("--image-map %s: it matches no --image: that is %s",
			strings.Join(o.ImageMap, ", "), o.Image)
	}
	for _, text := range o.Mounts {
		m, err := launcher.ParseMount(text, cwd)
		if err != nil {
			return nil, err
		}
		c.Mounts = append(c.Mounts, m)
	}
	return c, nil
}

// sayOutside warns before the launch of a script here that the containers will not find.
func sayOutside(a *app.App, o Options) {
	cwd, err := a.Getwd()
	if err != nil || o.Container.Image == "" || o.Request.Workdir != "" || len(o.Stage) > 0 ||
		!slices.Contains([]string{"exec", "torchrun", "ray"}, o.Workload) {
		return
	}
	if file := o.Container.outside(cwd, o.Request.Args); file != "" {
		remedy := "--mount . --workdir . shows it, --stage " + app.Quote(file) + " brings it"
		if away, err := a.Away(); err == nil && away != nil { // whose folders no machine of the cluster has
			remedy = "--stage " + app.Quote(file) + " brings it"
		}
		a.Say(file + " of this folder is not in the containers, unless their image has one: " + remedy)
	}
}

// outside names a file that the command runs by a relative name, that lies in a folder
// here, and that no mount shows to the containers. Empty: there is none. Whether the
// image has a file of that name is not known yet.
func (o ContainerOptions) outside(cwd string, args []string) string {
	for i, arg := range args[:min(len(args), 2)] {
		if filepath.IsAbs(arg) || strings.HasPrefix(arg, "-") || i == 0 && !strings.ContainsAny(arg, "./") {
			continue
		}
		file := filepath.Join(cwd, arg)
		if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
			continue
		}
		shown := slices.ContainsFunc(o.Mounts, func(text string) bool {
			m, err := launcher.ParseMount(text, cwd)
			return err == nil && (file == m.Source || strings.HasPrefix(file, strings.TrimSuffix(m.Source, "/")+"/"))
		})
		if !shown {
			return arg
		}
	}
	return ""
}

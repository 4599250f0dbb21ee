package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
)

// boxOptions are of launches whose ranks run in containers.
type boxOptions struct {
	image, pull, cache     string
	mounts, args, imageMap []string
	shm                    int64
}

func bindBox(fs *pflag.FlagSet, o *boxOptions) {
	fs.StringVar(&o.image, "image", "", "run each rank in a container of this image (`REF`), which every machine has or can pull")
	fs.Var(choice{&o.pull, []string{"missing", "always", "never"}}, "pull", "when to ask a registry for --image (default: missing)")
	fs.StringArrayVar(&o.mounts, "mount", nil, "show `SRC[:DST][:ro]`, a file or folder of each machine, to the containers; repeat for more")
	fs.StringVar(&o.cache, "model-cache", "", "a folder of each machine for Hugging Face's models, made where it is missing, or none (default: your ~/.cache/huggingface, or HF_HOME, where that is there)")
	fs.Var(amount{&o.shm}, "shm-size", "a /dev/shm of each container's own, such as 16G (default: the machine's)")
	fs.StringArrayVar(&o.args, "docker-arg", nil, "one more option of docker run, such as --docker-arg=--add-host=db:10.0.0.9; repeat for more")
	fs.StringArrayVar(&o.imageMap, "image-map", nil, "use REF where --image says NAME: `NAME=REF`; repeat for more")
}

func (o boxOptions) check() error {
	for _, m := range o.imageMap {
		if name, ref, ok := strings.Cut(m, "="); !ok || name == "" || ref == "" {
			return usagef("--image-map %q: want NAME=REF, such as vllm-node=registry.local/vllm:25.10", m)
		}
	}
	_, err := container.ParseArgs(o.args)
	return err
}

// needsImage refuses what is of containers where there is none.
func (o boxOptions) needsImage() error {
	if o.image == "" {
		for flag, given := range map[string]bool{
			"--pull": o.pull != "", "--mount": len(o.mounts) > 0, "--shm-size": o.shm != 0, "--docker-arg": len(o.args) > 0, "--model-cache": o.cache != "",
			"--image-map": len(o.imageMap) > 0,
		} {
			if given {
				return usagef("%s: it is of containers: name their image with --image", flag)
			}
		}
	}
	return nil
}

// container is what the ranks run in; nil: the host. A mount without a leading slash is one of
// cwd, where there is one.
func (o boxOptions) container(cwd string) (*launcher.Container, error) {
	if o.image == "" {
		return nil, nil
	}
	c := &launcher.Container{Image: o.image, Pull: launcher.Pull(o.pull), ShmBytes: o.shm, Args: o.args, ModelCache: o.cache}
	if c.ModelCache != "" && c.ModelCache != launcher.NoModelCache {
		m, err := launcher.ParseMount(c.ModelCache, cwd)
		if err != nil || m.Target != m.Source || m.ReadOnly {
			return nil, usagef("--model-cache %q: want a folder's path, or none", c.ModelCache)
		}
		c.ModelCache = m.Source
	}
	mapped := len(o.imageMap) == 0
	for _, m := range o.imageMap {
		if name, ref, _ := strings.Cut(m, "="); name == o.image {
			c.Image, mapped = ref, true
		}
	}
	if !mapped {
		return nil, usagef("--image-map %s: it matches no --image: that is %s", strings.Join(o.imageMap, ", "), o.image)
	}
	for _, text := range o.mounts {
		m, err := launcher.ParseMount(text, cwd)
		if err != nil {
			return nil, err
		}
		c.Mounts = append(c.Mounts, m)
	}
	return c, nil
}

// sayOutside tells of a script here that containers will not find, before they are launched.
func (a *app) sayOutside(o launchOptions) {
	cwd, err := a.getwd()
	if err != nil || o.box.image == "" || o.request.Workdir != "" || len(o.stage) > 0 || !slices.Contains([]string{"exec", "torchrun", "ray"}, o.workload) {
		return
	}
	if file := o.box.outside(cwd, o.request.Args); file != "" {
		remedy := "--mount . --workdir . shows it, --stage " + quote(file) + " brings it"
		if away, err := a.away(); err == nil && away != nil { // whose folders are on no machine of the cluster
			remedy = "--stage " + quote(file) + " brings it"
		}
		a.say(file + " of this folder is not in the containers, unless their image has one: " + remedy)
	}
}

// outside names a file of a folder here that the command runs by a relative name, and that containers will not find:
// no mount shows it. Empty: there is none. What the image has of that name nobody knows yet.
func (o boxOptions) outside(cwd string, args []string) string {
	for i, arg := range args[:min(len(args), 2)] {
		if filepath.IsAbs(arg) || strings.HasPrefix(arg, "-") || i == 0 && !strings.ContainsAny(arg, "./") {
			continue
		}
		file := filepath.Join(cwd, arg)
		if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
			continue
		}
		shown := slices.ContainsFunc(o.mounts, func(text string) bool {
			m, err := launcher.ParseMount(text, cwd)
			return err == nil && (file == m.Source || strings.HasPrefix(file, strings.TrimSuffix(m.Source, "/")+"/"))
		})
		if !shown {
			return arg
		}
	}
	return ""
}

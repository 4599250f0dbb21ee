package main

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// exo runs on the host, unless somebody has an image; its models are looked at by nobody else.
func TestLaunchExoWhere(t *testing.T) {
	const g = 1 << 30
	home, run := atHomeOf(t, wire.NodePlan{Host: "spark1",
		Memory: &wire.NodeMemory{Total: 120 * g, Available: 100 * g, GPU: true}})
	code, _, said := run("launch", "exo", "--dry-run", "org/model")
	if code != 0 || strings.Contains(said, "image") || strings.Contains(said, "config.json") ||
		!strings.Contains(said, "memory of spark1: 100.0 GiB of 120.0 GiB free") {
		t.Errorf("on the host: code %d: %s", code, said)
	}
	if code, _, said = run("launch", "exo", "--dry-run"); code != 0 || !strings.Contains(said, "no model is named") ||
		!strings.Contains(said, "/place_instance") {
		t.Errorf("no model: code %d: %s", code, said)
	}
	if code, _, said = run("launch", "exo", "--runtime", "docker", "--dry-run", "org/model"); code != 125 &&
		code != 2 || !strings.Contains(said, "nobody publishes an image of exo: --image names one of yours") {
		t.Errorf("no image: code %d: %s", code, said)
	}
	for _, flags := range containerFlags {
		if code, _, said = run(append([]string{"launch", "exo", "--dry-run", "org/model"},
			strings.Fields(flags)...)...); code != 125 ||
			!strings.Contains(said, ": this is for containers: name their image with --image") {
			t.Errorf("no image, and %s: code %d: %s", flags, code, said)
		}
	}
	write(t, "exo: exo-node:mine\n", home, ".config/sparkrun/images.yaml")
	if code, _, said = run("launch", "exo", "--dry-run", "org/model"); code != 0 ||
		!strings.Contains(said, "image exo-node:mine ("+home+"/.config/sparkrun/images.yaml;") {
		t.Errorf("an image: code %d: %s", code, said)
	}
	for _, flags := range append(containerFlags, "--image-map exo-node:mine=exo-node:other") {
		code, _, said = run(append([]string{"launch", "exo", "--dry-run", "org/model"}, strings.Fields(flags)...)...)
		if own := strings.HasSuffix(flags, " a=b"); (code != 0) != own ||
			strings.Contains(said, "it matches no --image: that is exo-node:mine") != own {
			t.Errorf("an image, and %s: code %d: %s", flags, code, said)
		}
	}
	if code, _, said = run("launch", "exo", "--runtime", "host", "--dry-run", "org/model"); code != 0 ||
		strings.Contains(said, "image") {
		t.Errorf("an image, and the host: code %d: %s", code, said)
	}
}

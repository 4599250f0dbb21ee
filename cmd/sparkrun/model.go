package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sparkrun/sparkrun/workloads"
)

// settleModel reads what a launch has to know of its model, where this machine has it. A path
// is made whole: it is the same on every machine.
func (a *app) settleModel(o *launchOptions) error {
	s := &o.request.Serve
	away, err := a.away()
	if err != nil && !o.standalone {
		return err
	}
	if strings.HasPrefix(s.Model, ".") && away == nil {
		cwd, err := a.getwd()
		if err != nil {
			return fmt.Errorf("find the working directory: %w; name the model by its full path", err)
		}
		s.Model = filepath.Join(cwd, s.Model)
	}
	if s.Model == "" || s.Config != nil || away != nil {
		return nil
	}
	dir := s.Model
	if !filepath.IsAbs(dir) {
		if dir = a.snapshot(s.Model); dir == "" {
			a.remark(s.Model + " is not in this machine's cache of Hugging Face (" + a.hub() + "): its heads, its size and its memory are not looked at; machines that have no copy fetch one into theirs")
			return nil
		}
	}
	m, err := readModel(dir)
	if errors.Is(err, fs.ErrNotExist) {
		a.remark("there is no " + filepath.Join(dir, "config.json") + " on this machine: the model's heads, size and memory are not looked at")
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at model %s: %w", s.Model, err)
	}
	s.Config = &m
	return nil
}

// readModel looks into a folder with a model.
func readModel(dir string) (workloads.Model, error) {
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return workloads.Model{}, err
	}
	index, err := os.ReadFile(filepath.Join(dir, "model.safetensors.index.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return workloads.Model{}, err
	}
	m, err := workloads.ParseModel(config, index)
	if err != nil || m.Bytes > 0 {
		return m, err
	}
	weights, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	for _, w := range weights {
		if fi, err := os.Stat(w); err == nil { // a link to a blob of the cache
			m.Bytes += fi.Size()
		}
	}
	return m, err
}

// hub is the cache of Hugging Face (huggingface_hub/constants.py).
func (a *app) hub() string {
	for _, from := range []struct{ variable, below string }{{"HF_HUB_CACHE", ""}, {"HF_HOME", "hub"}, {"XDG_CACHE_HOME", "huggingface/hub"}, {"HOME", ".cache/huggingface/hub"}} {
		if dir, _ := a.getenv(from.variable); filepath.IsAbs(dir) {
			return filepath.Join(dir, from.below)
		}
	}
	return ""
}

// snapshot is the folder of the model's main revision in the cache; empty: it is not there.
func (a *app) snapshot(model string) string {
	hub := a.hub()
	if hub == "" {
		return ""
	}
	repo := filepath.Join(hub, "models--"+strings.ReplaceAll(model, "/", "--"))
	ref, err := os.ReadFile(filepath.Join(repo, "refs", "main"))
	if err != nil {
		return ""
	}
	dir := filepath.Join(repo, "snapshots", filepath.Base(strings.TrimSpace(string(ref))))
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		return ""
	}
	return dir
}

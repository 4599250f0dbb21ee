// Command pull puts a model into a cache as a node does, from the stand-in for the Hub: for scripts/hfjudge.
//
//	pull [--all] CACHE ORG/NAME   fetches, verifies, and prints the snapshot's folder
//	pull --look CACHE ORG/NAME    judges what another tool has fetched
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/sparkrun/sparkrun/launcher/filesync/hub"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "pull:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	look := flag.Bool("look", false, "fetch nothing")
	all := flag.Bool("all", false, "every file, not only those that an engine loads")
	flag.Parse()
	if flag.NArg() != 2 {
		return errors.New("want CACHE ORG/NAME")
	}
	cache, err := modelcache.Open(modelcache.Config{Dir: flag.Arg(0)})
	if err != nil {
		return err
	}
	defer cache.Close()
	repo := modelcache.Repo{Type: modelcache.Model, Name: flag.Arg(1)}
	if !*look {
		if err := fetch(ctx, cache, repo, *all); err != nil {
			return err
		}
	}
	held, err := cache.Look(repo)
	if err != nil {
		return err
	}
	bad, err := cache.Verify(ctx, repo, "", nil)
	if err != nil {
		return err
	}
	for _, c := range held.Commits {
		fmt.Println(cache.Dir(repo, c.Commit))
		if !c.Whole() {
			return fmt.Errorf("files are missing: %v", c.Missing)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("files are wrong: %v", bad)
	}
	return nil
}

func fetch(ctx context.Context, cache *modelcache.Cache, repo modelcache.Repo, all bool) error {
	client, err := hub.New(hub.Config{Endpoint: os.Getenv("HF_ENDPOINT")})
	if err != nil {
		return err
	}
	rev, err := client.Resolve(ctx, repo.Name, hub.Model, "")
	if err != nil {
		return err
	}
	var choice hub.Choice
	if all {
		choice.Include = []string{"*"}
	}
	take, left := choice.Choose(rev.Files)
	m := modelcache.Manifest{Repo: repo, Commit: rev.Commit, Ref: rev.Asked}
	for _, f := range take {
		m.Files = append(m.Files, modelcache.File(f))
	}
	for _, f := range left {
		m.Left = append(m.Left, modelcache.File(f.File))
	}
	missing, err := cache.Missing(m)
	if err != nil {
		return err
	}
	for _, f := range missing {
		part, err := cache.Begin(repo, f)
		if err != nil {
			return err
		}
		body, err := client.Open(ctx, rev, hub.File(f), part.Prefix(), -1)
		if err == nil {
			_, err = io.Copy(part, body)
			body.Close()
		}
		if err == nil {
			err = part.Finish(false)
		}
		if err := errors.Join(err, part.Close()); err != nil {
			return err
		}
	}
	_, err = cache.Commit(m)
	return err
}

// Command hubstandin is a stand-in for Hugging Face's Hub, for tests:
//
//	hubstandin [--listen ADDR] [--cdn ADDR] [--token T] [--gated ORG/NAME] [--expire BYTES] [--rate BYTES]
//	    [--sparse ORG/NAME=BYTES] [--made ORG/NAME=COUNTxBYTES,...] ORG/NAME=FOLDER...
//
// datasets/ORG/NAME=FOLDER is a dataset. It prints HF_ENDPOINT=URL and runs until it is killed. Faults are
// ordered by POST /_standin/fault (the JSON of hubtest.Fault) and taken back by POST /_standin/heal; what was
// asked and sent is told by GET /_standin/seen.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/filesync/hub/hubtest"
)

type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hubstandin:", err)
		os.Exit(1)
	}
	select {}
}

func run() error {
	var tokens, gated, sparse, manufactured list
	listen := flag.String("listen", "", "address of the API; empty: a port of the loopback")
	cdn := flag.String("cdn", "", "address of the host that has the files")
	expire := flag.Int64("expire", 0, "bytes that a signed URL gives; 0: all")
	rate := flag.Int64("rate", 0, "bytes a second of each answer; 0: all at once")
	flag.Var(&tokens, "token", "a token that is good")
	flag.Var(&gated, "gated", "a repository that needs one")
	flag.Var(&sparse, "sparse", "a repository whose model.safetensors has so many zeros")
	flag.Var(&manufactured, "made", "a repository of files of these sizes, which take no disk; those under 1 MiB are .json")
	flag.Parse()
	s, err := hubtest.Start(*listen, *cdn)
	if err != nil {
		return err
	}
	s.Tokens, s.Expire, s.Rate = tokens, *expire, *rate
	add := func(arg string, do func(r hubtest.Repo, value string) (string, error)) error {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want NAME=VALUE", arg)
		}
		r := hubtest.Repo{Name: name, Type: "model", Gated: slices.Contains(gated, name)}
		if n, ok := strings.CutPrefix(name, "datasets/"); ok {
			r.Name, r.Type = n, "dataset"
		}
		commit, err := do(r, value)
		if err == nil {
			fmt.Fprintln(os.Stderr, r.Type, r.Name, commit)
		}
		return err
	}
	for _, arg := range flag.Args() {
		if err := add(arg, s.AddDir); err != nil {
			return err
		}
	}
	for _, arg := range sparse {
		err := add(arg, func(r hubtest.Repo, value string) (string, error) {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return "", err
			}
			r.Files = map[string]hubtest.Content{"config.json": hubtest.Text(`{"model_type":"gpt2"}`),
				"model.safetensors": hubtest.Sparse(n, nil)}
			return s.Add(r)
		})
		if err != nil {
			return err
		}
	}
	for _, arg := range manufactured {
		err := add(arg, func(r hubtest.Repo, value string) (string, error) {
			var err error
			if r.Files, err = made(value); err != nil {
				return "", err
			}
			return s.Add(r)
		})
		if err != nil {
			return err
		}
	}
	fmt.Println("HF_ENDPOINT=" + s.Endpoint)
	return nil
}

// made are as many files of each size.
func made(sizes string) (map[string]hubtest.Content, error) {
	files := map[string]hubtest.Content{"config.json": hubtest.Text(`{"model_type":"gpt2"}`)}
	for text := range strings.SplitSeq(sizes, ",") {
		var count, size int64
		if _, err := fmt.Sscanf(text, "%dx%d", &count, &size); err != nil {
			return nil, fmt.Errorf("--made %s: %q: want COUNTxBYTES", sizes, text)
		}
		for range count {
			n := len(files)
			name := fmt.Sprintf("model-%05d.safetensors", n)
			if size < 1<<20 {
				name = fmt.Sprintf("part-%05d.json", n)
			}
			files[name] = hubtest.Made(size, n)
		}
	}
	return files, nil
}

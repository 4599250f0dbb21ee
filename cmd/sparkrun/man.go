//go:build man

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help/man"
)

// With the tag the program is `man DIR`, which writes the manual pages to DIR; scripts/release runs it. Their date is
// SOURCE_DATE_EPOCH, in seconds since 1970.
func init() {
	if len(os.Args) != 3 || os.Args[1] != "man" {
		return
	}
	if err := writePages(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "sparkrun man:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func writePages(dir string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("read SOURCE_DATE_EPOCH: want seconds since 1970: %w", err)
	}
	for name, page := range man.Pages(newRootCmd(&app.App{}), buildVersion(), time.Unix(seconds, 0).UTC()) {
		if err := os.WriteFile(filepath.Join(dir, name), page, 0o644); err != nil {
			return fmt.Errorf("write the manual page %s: %w", name, err)
		}
	}
	return nil
}

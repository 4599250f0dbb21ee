package login

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// FindGroup gives a group's id, by files first, then by the C library (see Find).
func FindGroup(ctx context.Context, name string) (uint32, error) {
	text, _ := os.ReadFile("/etc/group")
	for line := range strings.Lines(string(text)) {
		if first, _, _ := strings.Cut(line, ":"); first == name {
			return parseGroup(line)
		}
	}
	if strings.Trim(name, "0123456789") == "" || strings.ContainsAny(name, ":\n\x00") {
		return 0, fmt.Errorf("group %q: %w", name, errNoGroup)
	}
	line, err := getent(ctx, "group", name)
	if errors.Is(err, errNoUser) {
		err = errNoGroup
	}
	if err != nil {
		return 0, fmt.Errorf("group %q: %w", name, err)
	}
	return parseGroup(line)
}

var errNoGroup = errors.New("not known on this node: create the group here")

// parseGroup reads one line of group(5).
func parseGroup(line string) (uint32, error) {
	f := strings.Split(strings.TrimSpace(line), ":")
	if len(f) != 4 {
		return 0, fmt.Errorf("group line has %d fields, want 4", len(f))
	}
	id, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("group line: %w", err)
	}
	return uint32(id), nil
}

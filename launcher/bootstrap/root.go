package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// becomeRoot finds out how, with the password that sudo accepts. Only the password is sent
// to a sudo that may refuse it: what follows would be read as the next attempt.
func (h *host) becomeRoot(ctx context.Context) error {
	if h.facts.nopasswd {
		return nil
	}
	var wrong *string
	for range 3 {
		p, err := h.secrets.password(ctx, h.facts.user, h.target[strings.LastIndex(h.target, "@")+1:], "for sudo", wrong)
		if err != nil {
			return fmt.Errorf("sudo of %s: %w", h.facts.user, err)
		}
		_, err = h.run(ctx, commandTimeout, "sudo -k -S -p '' true", strings.NewReader(p+"\n"))
		var said *commandError
		switch {
		case err == nil:
			h.sudo = &p
			return nil
		case !errors.As(err, &said):
			return err
		case strings.Contains(said.words, "sudoers") || strings.Contains(said.words, "not allowed") ||
			strings.Contains(said.words, "may not run"):
			return fmt.Errorf("%s may not use sudo there: %s", h.facts.user, said.words)
		case strings.Contains(said.words, "must have a tty"):
			return fmt.Errorf("sudo wants a terminal there (requiretty in sudoers): %s", said.words)
		}
		wrong = &p
	}
	return fmt.Errorf("sudo of %s: %w", h.facts.user, errWrongPassword)
}

// asRoot runs one of our scripts as root. Its standard input follows sudo's password;
// nothing secret is in the command line.
func (h *host) asRoot(ctx context.Context, timeout time.Duration, script string, stdin io.Reader) (string, error) {
	if stdin == nil {
		stdin = &bytes.Reader{}
	}
	command := "sh -c " + quote(prologue+script)
	switch {
	case h.facts.root: // there may be no sudo
	case h.sudo == nil:
		command = "sudo -n " + command
	default:
		// -k: if sudo remembered a password, ours would be left for the script to read.
		command = "sudo -k -S -p '' " + command
		stdin = io.MultiReader(strings.NewReader(*h.sudo+"\n"), stdin)
	}
	return h.run(ctx, timeout, command, stdin)
}

// quote makes text one word for a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

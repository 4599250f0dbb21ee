package app

import "fmt"

// AloneText says that one machine alone has what it was just told.
func AloneText(host string) string {
	return fmt.Sprintf("recorded on %s only, until another machine has a copy", host)
}

// SayAlone says that one machine alone has it, where a host is given.
func (a *App) SayAlone(host string) {
	if host != "" {
		a.Say(AloneText(host))
	}
}

package app

import "fmt"

// AloneText says that only one machine has recorded what was just requested.
func AloneText(host string) string {
	return fmt.Sprintf("recorded on %s only, until another machine has a copy", host)
}

// SayAlone says so where a host is given.
func (a *App) SayAlone(host string) {
	if host != "" {
		a.Say(AloneText(host))
	}
}

package main

import "fmt"

// aloneText says that one machine alone has what it was just told.
func aloneText(host string) string {
	return fmt.Sprintf("recorded on %s only, until another machine has a copy", host)
}

func (a *app) sayAlone(host string) {
	if host != "" {
		a.say(aloneText(host))
	}
}

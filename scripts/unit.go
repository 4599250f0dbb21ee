// Package scripts holds what an installation needs besides the program, so that
// the program can bring it to a host: the same files that a person installs by hand.
package scripts

import _ "embed"

// Unit is the agent's systemd unit.
//
//go:embed sparkrun.service
var Unit string

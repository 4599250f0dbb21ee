//go:build embedshim

package main

import _ "embed"

// shimProgram is cmd/sparkrun-shim, which scripts/build puts there first.
//
//go:embed sparkrun-shim
var shimProgram []byte

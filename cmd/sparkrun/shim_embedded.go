//go:build embedshim

package main

import _ "embed"

// shimProgram is cmd/sparkrun-shim, which scripts/build lays there.
//
//go:embed sparkrun-shim
var shimProgram []byte

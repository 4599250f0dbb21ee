//go:build !embedshim

package main

// shimProgram: a plain `go build` carries none, and its shims are `sparkrun shim`.
var shimProgram []byte

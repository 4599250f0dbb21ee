// Command half is either half of a container, for tests.
package main

import (
	"os"

	"github.com/sparkrun/sparkrun/launcher/container"
)

func main() { os.Exit(container.Main(os.Args[2])) }

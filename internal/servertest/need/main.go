//go:build unix

// Command need installs the servers that the tests use, where they are missing
// and that is permitted: what the first test of each would do otherwise.
package main

import (
	"fmt"
	"os"

	"github.com/dibs-go/dibs/internal/servertest"
)

func main() {
	if err := servertest.Install(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

//go:build unix

// Command need installs what the tests use beside Go, where it is missing and that is
// permitted: servers, a C compiler for the race detector, ps and curl.
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

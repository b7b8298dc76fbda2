// Command scale says what a key, a tenant and a fleet of processes cost a database as
// the numbers grow. The costs are functions of the numbers, made of constants that are
// those of the stores, or were counted at a server; the tests have real servers count,
// and fail where a model is wrong by more than a quarter. It prints the tables of docs/scale.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	err := run(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// run prints all tables, or that of a fleet of which a flag says something.
func run(args []string, stdout io.Writer) error {
	f := Ordinary(100)
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	page := flags.String("page", "", "renew the tables in this `file`, and print nothing")
	markdown := flags.Bool("markdown", false, "print Markdown")
	flags.IntVar(&f.Processes, "processes", f.Processes, "how many `processes` there are")
	flags.IntVar(&f.Held, "held", f.Held, "how many `leases` each of them holds all the time")
	flags.DurationVar(&f.TTL, "ttl", f.TTL, "how `long` a lease lasts without being renewed")
	flags.Float64Var(&f.Requests, "requests", f.Requests, "how many idempotent `requests` each has in a second")
	flags.Float64Var(&f.Duplicates, "duplicates", f.Duplicates, "which `share` of them was made before")
	flags.DurationVar(&f.Retention, "retention", f.Retention, "how `long` answers are kept")
	flags.IntVar(&f.Shape.Data, "answer", f.Shape.Data, "how many `bytes` an answer has")
	flags.IntVar(&f.Shape.Key, "key", f.Shape.Key, "how many `bytes` a key has")
	flags.IntVar(&f.Waiting, "waiting", f.Waiting, "how many `callers` of each process want one key that all want")
	flags.DurationVar(&f.Section, "section", f.Section, "how `long` each of them has it")
	flags.DurationVar(&f.Trip, "trip", f.Trip, "how `long` a call of the store takes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := f.validate(); err != nil {
		return err
	}
	if *page != "" {
		return publish(*page)
	}
	tables := All()
	flags.Visit(func(set *flag.Flag) {
		if set.Name != "markdown" {
			tables = []Table{Processes(f)}
		}
	})
	for _, t := range tables {
		if *markdown {
			t.Markdown(stdout)
		} else {
			t.Text(stdout)
		}
	}
	return nil
}

// validate returns an error that names the flag that is wrong.
func (f Fleet) validate() error {
	switch {
	case f.Processes < 1 || f.Processes > 1e6:
		return fmt.Errorf("-processes is %d; it must be 1 to 1000000", f.Processes)
	case f.Held < 0 || f.Waiting < 0:
		return fmt.Errorf("-held is %d and -waiting is %d; they must not be negative", f.Held, f.Waiting)
	case f.TTL < 10*time.Millisecond || f.Trip <= 0:
		return fmt.Errorf("-ttl is %v and -trip is %v; they must be at least 10 ms and more than 0", f.TTL, f.Trip)
	case f.Requests < 0 || f.Retention < 0 || f.Section < 0:
		return fmt.Errorf("-requests is %v, -retention is %v and -section is %v; they must not be negative", f.Requests, f.Retention, f.Section)
	case f.Duplicates < 0 || f.Duplicates > 1:
		return fmt.Errorf("-duplicates is %v; it must be 0 to 1", f.Duplicates)
	case f.Shape.Key < 1 || f.Shape.Data < 0:
		return fmt.Errorf("-key is %d and -answer is %d; they must be at least 1 and 0", f.Shape.Key, f.Shape.Data)
	}
	return nil
}

//go:build unix

// Command nightly tortures every kind of store, with servers of its own, with every fault
// that applies, and writes what came of it into docs/reliability.md. `make torture` runs
// it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/proof/backend"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/proof/victim"
)

func main() {
	torture.Child(backend.Open)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	scope := servertest.NewScope()
	err := run(ctx, scope, os.Args[1:])
	scope.Close()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

// clockShare is the part of the time that a clock's steps have, which meet no other fault.
const clockShare = 5

// errFailed says that a store did not pass. What is wrong was printed.
var errFailed = errors.New("not every store has passed")

func run(ctx context.Context, scope *servertest.Scope, args []string) error {
	flags := flag.NewFlagSet("nightly", flag.ContinueOnError)
	duration := flags.Duration("duration", 5*time.Minute, "how `long` faults strike each store")
	only := flags.String("only", "", "torture only this `store`")
	page := flags.String("page", "", "write the table between the marks in this `file`")
	seed := flags.Uint64("seed", 0, "the `number` from which everything derives; random when 0")
	together := flags.Int("together", 2, "torture so `many` stores at a time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var victims []victim.Victim
	for _, v := range victim.All() {
		if *only == "" || *only == v.Name {
			victims = append(victims, v)
		}
	}
	if len(victims) == 0 {
		return fmt.Errorf("there is no store %q", *only)
	}
	rows := make([][]row, len(victims))
	errs := make([]error, len(victims))
	var all sync.WaitGroup
	seats := make(chan struct{}, max(1, *together))
	for i, v := range victims {
		seats <- struct{}{}
		all.Go(func() {
			defer func() { <-seats }()
			rows[i], errs[i] = tortureOne(ctx, scope, v, *duration, *seed)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: what was seen says little, and the page stays as it was")
	}
	text := table(rows)
	fmt.Println(text)
	if *page != "" {
		if err := publish(*page, fmt.Sprintf("%s, %v under fire each.\n\n%s", time.Now().UTC().Format(time.DateOnly), *duration, text)); err != nil {
			return err
		}
	}
	if failed(rows) {
		return errFailed
	}
	return nil
}

// publish puts the text between the marks of the page. What failed is in it, too.
func publish(page, text string) error {
	before, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	after, err := between(string(before), text)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(after), 0o644)
}

// tortureOne tortures one kind of store: with all faults that can meet, and then with
// each that has to be alone.
func tortureOne(ctx context.Context, scope *servertest.Scope, v victim.Victim, duration time.Duration, seed uint64) ([]row, error) {
	target := v.New(scope)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("store", v.Name)
	names := []string{""}
	all, _, err := fault.Select(target, "all")
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		if f.Alone {
			names = append(names, f.Name)
		}
	}
	var rows []row
	for _, faults := range names {
		o := &torture.Options{
			URL: target.URL, Shown: v.Name + ":", Open: backend.Open, Target: target,
			Duration: duration, Faults: faults, Seed: seed, Log: log,
		}
		if faults != "" {
			o.Duration = max(duration/clockShare, 10*time.Second)
			target = v.New(scope)
			o.URL, o.Target = target.URL, target
		}
		r, err := torture.Run(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		var text bytes.Buffer
		fmt.Fprintf(&text, "== %s %s\n", v.Name, faults)
		if err := r.WriteText(&text); err != nil {
			return nil, err
		}
		fmt.Print(text.String())
		rows = append(rows, row{v.Name, r})
	}
	return rows, nil
}

// failed reports whether a store has not passed.
func failed(rows [][]row) bool {
	for _, of := range rows {
		for _, r := range of {
			if !r.report.OK() {
				return true
			}
		}
	}
	return false
}

// The marks between which the table is in the page.
const (
	begin = "<!-- What is between these marks was written by make torture. -->\n"
	end   = "<!-- The end of it. -->\n"
)

// between puts the text between the marks.
func between(page, text string) (string, error) {
	before, rest, ok := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("it has no place for the table: it needs the lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + "\n" + text + "\n" + end + after, nil
}

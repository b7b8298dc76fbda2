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
	"math/rand/v2"
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

// The parts of the time that a run with fewer faults has.
const (
	// plainShare is that of the faults under which a store forgets nothing: what it answers
	// is checked more strictly.
	plainShare = 2
	// aloneShare is that of a fault that meets no other, as the server's clock.
	aloneShare = 5
	// shortest is what such a run has at least.
	shortest = 10 * time.Second
)

// plain are those faults.
const plain = "worker,network"

// errFailed says that a store did not pass. What is wrong was printed.
var errFailed = errors.New("not every store has passed")

func run(ctx context.Context, scope *servertest.Scope, args []string) error {
	flags := flag.NewFlagSet("nightly", flag.ContinueOnError)
	duration := flags.Duration("duration", time.Minute, "how `long` faults strike each store")
	only := flags.String("only", "", "torture only this `store`")
	faults := flags.String("faults", "", "let only these `faults` strike, for all of the duration")
	page := flags.String("page", "", "write the table between the marks in this `file`")
	seed := flags.Uint64("seed", 0, "the `number` from which everything derives; random when 0")
	together := flags.Int("together", 2, "torture so `many` stores at a time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for *seed == 0 {
		*seed = rand.Uint64() >> 16 // short enough to be typed
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
			rows[i], errs[i] = tortureOne(ctx, scope, v, *faults, *duration, *seed)
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
	if commands := failed(rows); len(commands) > 0 {
		return fmt.Errorf("%w; again, in proof, with:\n%s", errFailed, strings.Join(commands, "\n"))
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

// tortureOne tortures one kind of store: with all faults that can meet, on one server with
// those alone under which it forgets nothing, and with each that has to be alone. With
// faults that are asked for it does that.
func tortureOne(ctx context.Context, scope *servertest.Scope, v victim.Victim, faults string, duration time.Duration, seed uint64) ([]row, error) {
	type share struct {
		faults   string
		duration time.Duration
	}
	shares := []share{{faults, duration}}
	target := v.New(scope)
	if faults == "" {
		if target.Server != nil {
			shares = append(shares, share{plain, max(duration/plainShare, shortest)})
		}
		all, _, err := fault.Select(target, "all")
		if err != nil {
			return nil, err
		}
		for _, f := range all {
			if f.Alone {
				shares = append(shares, share{f.Name, max(duration/aloneShare, shortest)})
			}
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("store", v.Name)
	var rows []row
	for i, s := range shares {
		if i > 0 {
			target = v.New(scope)
		}
		r, err := torture.Run(ctx, &torture.Options{
			URL: target.URL, Shown: v.Name + ":", Open: backend.Open, Target: target,
			Duration: s.duration, Faults: s.faults, Seed: seed, Log: log,
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w; again, in proof, with:\n%s", v.Name, err, command(v.Name, s.faults, s.duration, seed))
		}
		var text bytes.Buffer
		fmt.Fprintf(&text, "== %s %s\n", v.Name, s.faults)
		if err := r.WriteText(&text); err != nil {
			return nil, err
		}
		fmt.Print(text.String())
		rows = append(rows, row{v.Name, s.faults, s.duration, r})
	}
	return rows, nil
}

// failed returns the commands that repeat the runs that have not passed.
func failed(rows [][]row) (commands []string) {
	for _, of := range rows {
		for _, r := range of {
			if !r.report.OK() {
				commands = append(commands, command(r.store, r.faults, r.duration, r.report.Seed))
			}
		}
	}
	return commands
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

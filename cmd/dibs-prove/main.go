// Command dibs-prove breaks things on purpose and checks what they keep of their promises:
// conform checks implementations of idempotent HTTP, and torture breaks stores. It is a program
// of its own, because the product contains nothing that breaks a store.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/prove/progress"
	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/stores/anystore"
)

// Exit codes, after sysexits.h.
const (
	codeOK       = 0
	codeFailed   = 1
	codeUsage    = 64
	codeUnusable = 69
)

const usage = `Breaks things on purpose, and checks what they keep of their promises.

Usage:
  dibs-prove conform --target URL   checks any implementation of idempotent HTTP
  dibs-prove torture --store URL    breaks a store on purpose; for test servers
  dibs-prove --version

"dibs-prove conform --help" and "dibs-prove torture --help" have the flags.
`

func main() {
	torture.Child(torture.OpenStore) // does not return in a worker process
	// The first signal ends the run in order; the second one ends the process at once.
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals)
		cancel(&interruptedError{s.(syscall.Signal)})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// run runs the program with the arguments after its name and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	switch name {
	case "conform":
		return runConform(ctx, args[1:], stdout, stderr, getenv)
	case "torture":
		return runTorture(ctx, args[1:], stdout, stderr, getenv)
	case "--version":
		fmt.Fprintln(stdout, "dibs-prove", release())
		return codeOK
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
		return codeOK
	case "":
		fmt.Fprint(stderr, usage)
	default:
		fmt.Fprintf(stderr, "dibs-prove: there is no command %q; the commands are conform and torture\n", name)
	}
	return codeUsage
}

// interruptedError is the cause with which a run ends after a signal.
type interruptedError struct{ signal syscall.Signal }

func (e *interruptedError) Error() string { return "ended by a signal: " + e.signal.String() }

// code is the exit code that a shell reports for the signal.
func (e *interruptedError) code() int { return 128 + int(e.signal) }

// release is the version of this build.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// tortureUsage is the help before the list of flags.
//
//go:embed torture.txt
var tortureUsage string

// runTorture runs the torture with the arguments after its name and returns the exit code.
func runTorture(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	line := progress.New(stderr, getenv)
	o := torture.Options{Log: slog.New(slog.NewTextHandler(line, &slog.HandlerOptions{ReplaceAttr: withoutTime}))}
	flags := flag.NewFlagSet("dibs-prove torture", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.Duration, o.TTL = torture.DefaultDuration, torture.DefaultTTL
	flags.Var((*quantity.DurationFlag)(&o.Duration), "duration", "how long faults strike; at least 1s")
	flags.StringVar(&o.Faults, "faults", "", "the `LIST` of faults (default all that apply and take nothing from other users)")
	flags.Uint64Var(&o.Seed, "seed", 0, "the `NUMBER` from which everything derives (default a random one)")
	flags.IntVar(&o.Workers, "workers", torture.DefaultWorkers, "how many processes use the store, 1 to 64")
	flags.Var((*quantity.DurationFlag)(&o.TTL), "lease", "the TTL of leases, 1s to 1m")
	url, fault := anystore.FromEnvironment(getenv)
	flags.StringVar(&o.URL, "store", url, "the `URL` of the store: see dibs help store; from DIBS_STORE, or the file of DIBS_STORE_FILE, if that is set")
	asJSON := flags.Bool("json", false, "print the report as JSON")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, tortureUsage)
		flags.Lookup("store").DefValue, _ = anystore.Show(o.URL) // it can contain a password
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return codeOK
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("%q is not a flag, and dibs-prove torture takes nothing else", flags.Arg(0))
	case err == nil && o.URL == "" && fault != nil:
		err = fault
	case err == nil:
		err = validate(&o)
	}
	if err != nil {
		fmt.Fprintf(stderr, "dibs-prove torture: %v\nTry 'dibs-prove torture --help'.\n", err)
		return codeUsage
	}
	o.Shown, _ = anystore.Show(o.URL)
	o.Progress = func(p torture.Progress) { line.Show(progressText(p)) }
	if !line.On() {
		o.Progress = nil
	}
	code, err := report(ctx, &o, *asJSON, stdout, line)
	if err != nil {
		fmt.Fprintf(stderr, "dibs-prove torture: %v\n", err)
	}
	return code
}

// report runs the torture and prints its report.
func report(ctx context.Context, o *torture.Options, asJSON bool, stdout io.Writer, line *progress.Line) (code int, err error) {
	r, err := torture.Run(ctx, o)
	line.Show("")
	i, interrupted := errors.AsType[*interruptedError](context.Cause(ctx))
	switch {
	case err != nil && interrupted:
		return i.code(), i
	case errors.Is(err, anystore.ErrURL):
		return codeUsage, err
	case errors.Is(err, anystore.ErrUnusable):
		return codeUnusable, err
	case err != nil:
		return codeFailed, err
	}
	write := r.WriteText
	if asJSON {
		write = r.WriteJSON
	}
	if err := write(stdout); err != nil {
		return codeFailed, err
	}
	if interrupted {
		return i.code(), i
	}
	if !r.OK() {
		return codeFailed, nil
	}
	return codeOK, nil
}

// progressText is the line of a terminal while the torture runs.
func progressText(p torture.Progress) string {
	text := p.Doing
	if p.Left > 0 {
		text += fmt.Sprintf(", %v left", p.Left.Round(time.Second))
	}
	return text + fmt.Sprintf(": %d of %d faults have hit, %d lines of history", p.Hit, p.Faults, p.Lines)
}

// validate returns what is wrong with the flags. An error names the flag.
func validate(o *torture.Options) error {
	switch {
	case o.TTL < time.Second:
		return fmt.Errorf("lease: %v is too short; it must be 1s to 1m", o.TTL)
	case o.Duration == 0 || o.Workers == 0:
		return errors.New("duration and workers must be more than 0")
	}
	if err := o.Validate(); err != nil {
		return errors.New(flagNames.Replace(err.Error()))
	}
	return nil
}

// flagNames turns the names of fields into names of flags.
var flagNames = strings.NewReplacer(
	torture.ErrOptions.Error()+": ", "", "Options.URL is missing: name a store", "no store is named; set --store or DIBS_STORE", "Options.Faults", "faults", "Options.Duration", "duration",
	"Options.Workers", "workers", "Options.TTL", "lease",
)

// withoutTime leaves the time out of log lines, because they are read as they are printed.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

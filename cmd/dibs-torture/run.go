package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/dibs-go/dibs/proof/backend"
	"github.com/dibs-go/dibs/proof/torture"
)

// usage is the help before the list of flags.
//
//go:embed usage.txt
var usage string

// Exit codes, after sysexits.h.
const (
	codeOK       = 0
	codeFailed   = 1
	codeUsage    = 64
	codeUnusable = 69
)

// defaultStore is the URL of the store if neither --store nor DIBS_STORE names one.
const defaultStore = "sqlite:dibs.db"

// run runs the program with the arguments after its name and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	o := torture.Options{Open: backend.Open, Log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{ReplaceAttr: withoutTime}))}
	flags := flag.NewFlagSet("dibs torture", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&o.Duration, "duration", torture.DefaultDuration, "how long faults strike; at least 1s")
	flags.StringVar(&o.Faults, "faults", "", "the `LIST` of faults (default all that apply and take nothing from other users)")
	flags.Uint64Var(&o.Seed, "seed", 0, "the `NUMBER` from which everything derives (default a random one)")
	flags.IntVar(&o.Workers, "workers", torture.DefaultWorkers, "how many processes use the store, 1 to 64")
	flags.DurationVar(&o.TTL, "lease", torture.DefaultTTL, "the TTL of leases, 1s to 1m")
	flags.StringVar(&o.URL, "store", cmp.Or(getenv("DIBS_STORE"), defaultStore), "the `URL` of the store, as dibs reads it; from DIBS_STORE if that is set")
	asJSON := flags.Bool("json", false, "print the report as JSON")
	showVersion := flags.Bool("version", false, "print the version")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		flags.VisitAll(func(f *flag.Flag) { f.DefValue = hidden(f) })
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return codeOK
	case err == nil && *showVersion:
		fmt.Fprintln(stdout, version())
		return codeOK
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("%q is not a flag, and dibs torture takes nothing else", flags.Arg(0))
	case err == nil:
		err = validate(&o)
	}
	if err != nil {
		fmt.Fprintf(stderr, "dibs torture: %v\nTry 'dibs torture --help'.\n", err)
		return codeUsage
	}
	o.Shown = shown(o.URL)
	code, err := report(ctx, &o, *asJSON, stdout)
	if err != nil {
		fmt.Fprintf(stderr, "dibs torture: %v\n", err)
	}
	return code
}

// report runs the torture and prints its report.
func report(ctx context.Context, o *torture.Options, asJSON bool, stdout io.Writer) (code int, err error) {
	r, err := torture.Run(ctx, o)
	i, interrupted := errors.AsType[*interruptedError](context.Cause(ctx))
	switch {
	case err != nil && interrupted:
		return i.code(), i
	case errors.Is(err, torture.ErrUnusable):
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

// validate returns what is wrong with the flags. An error names the flag.
func validate(o *torture.Options) error {
	switch {
	case strings.HasPrefix(o.URL, "memory:"):
		return errors.New("store: worker processes cannot share a store in memory; name another one with --store")
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
	torture.ErrOptions.Error()+": ", "", "Options.Faults", "faults", "Options.Duration", "duration",
	"Options.Workers", "workers", "Options.TTL", "lease",
)

// hidden returns the default of a flag as the help prints it. The default of the store can
// contain a password.
func hidden(f *flag.Flag) string {
	if f.Name == "store" {
		return shown(f.DefValue)
	}
	return f.DefValue
}

// shown returns the URL of a store without its password.
func shown(store string) string {
	u, err := url.Parse(store)
	if err != nil {
		return "(not printed, because it is not a URL)"
	}
	if _, ok := u.User.Password(); ok {
		u.User = url.User(u.User.Username())
	}
	query := u.Query()
	query.Del("password")
	query.Del("sslpassword")
	u.RawQuery = query.Encode()
	return u.String()
}

// withoutTime leaves the time out of log lines, because they are read as they are printed.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

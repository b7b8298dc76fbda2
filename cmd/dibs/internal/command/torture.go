package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/internal/stores"
	"github.com/dibs-go/dibs/proof/backend"
	"github.com/dibs-go/dibs/proof/torture"
)

// tortureOptions are what its flags say.
type tortureOptions struct {
	torture.Options
	html string
	json bool
}

func (p *program) torture() *cobra.Command {
	o := tortureOptions{Options: torture.Options{Open: backend.Open}}
	cmd := &cobra.Command{
		Use:   "torture",
		Short: "Break a store on purpose, and check what comes of it",
		Long: `Worker processes use a store as programs do, and as none should: they hold keys,
renew them, write to guarded resources, have things done once, crash and come
late, while faults strike at random. Every call and every answer is written down
before it leaves. Then all of it is checked: that leases exclude, that fences
rise, that records are found and equal, that those who waited were granted in
their order, that every key can be had again soon after the last fault, and that
nothing is left behind.

The keys are in a namespace of the run's own, and are removed at the end. Faults
that would take something away from others who use the same server do not strike
unless --faults names them. The words of that list are the names of faults,

  kill, stop, worker-clock, delay, cut, reset, partition, late-requests,
  late-replies, lost-requests, lost-replies, lost-reply, server-kill,
  server-stop, server-clock, kill-connections, exhaust-connections,
  script-flush, flushall, failover, file-lock, disk-full, io-error,
  permissions,

the kinds worker, network, server, data and file, all and none; a - before a
word takes it out.

What is done derives from the seed, which is printed with the command that
repeats the run; how the processes race does not. Ends with 0 if nothing was
broken, everything was decided, and every fault bit; with 1 otherwise. The
histories of such a run are kept, and with --html there are pictures of them.
Ends with 69 if the store is unreachable or unusable, and nothing was done; with
130 or 143 after SIGINT or SIGTERM, when what was begun has been checked and
removed.`,
		Example: `  dibs torture --store postgres://app@db.internal/app
  dibs torture --store redis://localhost --duration 5m --faults worker,network
  dibs torture --store sqlite:dibs.db --faults all,-disk-full --html report.html`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error { return p.runTorture(cmd.Context(), &o) }),
	}
	fs := cmd.Flags()
	fs.DurationVar(&o.Duration, "duration", torture.DefaultDuration, "how long faults strike; at least 1s")
	fs.StringVar(&o.Faults, "faults", "", "the `LIST` of faults (default all that apply and take nothing from others)")
	fs.Uint64Var(&o.Seed, "seed", 0, "the `NUMBER` from which everything derives (default a random one)")
	fs.IntVar(&o.Workers, "workers", torture.DefaultWorkers, "how many processes use the store, 1 to 64")
	fs.DurationVar(&o.TTL, "lease", torture.DefaultTTL, "how long keys are held without renewal, 1s to 1m")
	fs.StringVar(&o.html, "html", "", "write a report with pictures to the `FILE`")
	fs.BoolVar(&o.json, "json", false, "print the report as JSON")
	fs.StringVar(&p.storeURL, "store", "", "the `URL` of the store: "+strings.Join(stores.Forms(), " or ")+" (default $DIBS_STORE, or "+stores.Default+")")
	return cmd
}

// runTorture runs the torture that was asked for.
func (p *program) runTorture(ctx context.Context, o *tortureOptions) error {
	o.URL = p.storeOf()
	o.Shown, _ = stores.Show(o.URL)
	switch {
	case strings.HasPrefix(o.URL, "memory:"):
		return usagef("store: the workers are processes, which share no store in memory: name another with --store")
	case o.TTL < time.Second || o.TTL > time.Minute:
		return usagef("lease: it is %v; it must be 1s to 1m", o.TTL)
	case o.Duration == 0:
		return usagef("duration: it is 0s; it must be at least 1s") // with the library, that is the default
	case o.Workers == 0:
		return usagef("workers: it is 0; it must be 1 to 64")
	}
	if err := o.Validate(); err != nil {
		return usagef("%s", flagsOf.Replace(err.Error()))
	}
	// What is wrong with the store is said before anything begins, and its tables are made.
	store, err := stores.Open(ctx, o.URL)
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	page, err := openPage(o.html)
	if err != nil {
		return err
	}
	if page != nil {
		defer page.Close()
	}
	o.Log = slog.New(slog.NewTextHandler(p.env.Stderr, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	report, err := torture.Run(ctx, &o.Options)
	if errors.Is(err, torture.ErrOptions) {
		return usagef("%s", flagsOf.Replace(err.Error()))
	}
	if err != nil {
		return err
	}
	write := report.WriteText
	if o.json {
		write = report.WriteJSON
	}
	err = write(p.env.Stdout)
	if page != nil {
		err = errors.Join(err, empty(page), report.WriteHTML(page))
	}
	if err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !report.OK():
		return &exitError{code: codeFailed} // the report has said it all
	}
	return nil
}

// flagsOf makes the names of flags of those of options.
var flagsOf = strings.NewReplacer(
	torture.ErrOptions.Error()+": ", "", "Options.Faults: fault", "faults", "Options.Duration is", "duration: it is",
	"Options.Workers is", "workers: it is", "Options.TTL is", "lease: it is",
)

// openPage opens the file of a report, and none when there is no name. What is in it stands
// until there is another report.
func openPage(name string) (*os.File, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("the page cannot be written: %w", err)
	}
	return f, nil
}

// empty removes what is in the file, if it is one that has something: a pipe or a device
// has not.
func empty(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	return f.Truncate(0)
}

// withoutTime leaves out when something was logged, as it is said while it happens.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

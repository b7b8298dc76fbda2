//go:build unix

package command

import (
	"cmp"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/process"
	"github.com/dibs-go/dibs/internal/suggest"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// watchdog runs a watchdog's work in a process that is one.
func watchdog() { process.Watchdog() }

// The environment variables of a command under a key.
const (
	envKey       = "DIBS_KEY"
	envNamespace = "DIBS_NAMESPACE"
	envFence     = "DIBS_FENCE"
)

// held is a command under a key: the arguments of dibs run.
type held struct {
	key     string
	command []string

	lease   time.Duration
	wait    time.Duration
	skip    bool
	permits int
	oncePer time.Duration
	from    string // fromStart or fromEnd
	failed  bool   // a failed run counts for oncePer
	quiet   bool
	leave   bool // do not end the processes that the command leaves
	metrics string

	succeeded time.Time // the end of the last run that is known to have succeeded
}

// When the time of --once-per begins.
const (
	fromStart = "start"
	fromEnd   = "end"
)

// unixCommands returns dibs run. It needs process groups and signals, which only Unix has.
func (p *program) unixCommands() []*cobra.Command {
	var h held
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- COMMAND [ARG ...]",
		Short: "Run a command while holding a key",
		Long: `Runs a command while it holds a key. No other "dibs run" with the same key and
store runs at the same time, on any host. A second run waits in the order of
arrival, unless --skip or --wait is given. The store must be named, by --store
or by DIBS_STORE.

The command runs in its own process group, with DIBS_KEY, DIBS_NAMESPACE and
DIBS_FENCE in its environment. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and
SIGUSR2 are passed on to the group. A second SIGINT kills it. When the command
ends, processes that it left in its group are ended too, unless
--leave-children is given. If the key cannot be renewed, the group is ended
before another process can hold the key. If dibs run itself is killed, the group
is killed too, and the key is free when its lease expires.

Ctrl-Z stops the command and dibs run, and fg or bg continues both. Meanwhile
the lease is not renewed. If it has expired, the command is ended instead.

Ends with the command's own exit code, with 128+n if signal n killed it, with
127 if it was not found and 126 if it is not executable; otherwise with

  64  the arguments are wrong, nothing was run
  69  the store is unreachable or unusable, nothing was run
  70  the key was lost while the command ran, or could not be settled after it
  75  the key is busy (--skip, or --wait is over), nothing was run
  130, 143  SIGINT or SIGTERM came while waiting, nothing was run`,
		Example: `  dibs run --store redis://cache.internal nightly-report -- ./report.sh
  dibs run --skip --once-per 20h backup -- pg_dump -f /backup/today.sql shop
  dibs run --permits 3 --wait 1m thumbnails -- ./make-thumbnails`,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			if err := h.read(cmd.Flags(), args, p); err != nil {
				return err
			}
			return h.named(p.namespace, p.runMeasured(cmd.Context(), &h))
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // because flags after KEY are the command's
	f.StringVar(&h.key, "key", "", "the `KEY`, instead of the argument; it can begin with -")
	durationVar(f, &h.lease, "lease", dibs.DefaultTTL, "how long the key stays taken after its last renewal, at least 1s")
	durationVar(f, &h.wait, "wait", 0, "how long to wait for the key (default: without a limit); 0 is --skip")
	f.BoolVar(&h.skip, "skip", false, "do not wait: exit with 75 if the key is busy")
	f.IntVar(&h.permits, "permits", 1, "how many processes can hold the key at once; a run with another number waits until they have released it")
	durationVar(f, &h.oncePer, "once-per", 0, "do nothing, and exit with 0, if a run that began within this time succeeded")
	f.StringVar(&h.from, "once-per-from", fromStart, "`WHEN` the time of --once-per begins: start or end of the run")
	f.BoolVar(&h.failed, "once-per-failed", false, "count failed runs for --once-per too, so that no other host tries again")
	f.BoolVar(&h.quiet, "quiet", false, "print nothing if the key is busy or done; the command's output and errors stay")
	f.BoolVar(&h.leave, "leave-children", false, "do not end processes that the command started and did not wait for")
	f.StringVar(&h.metrics, "metrics-file", "", "write how the run ended, and when one last succeeded, to `FILE`, whose name ends in .prom, for a node exporter")
	p.storeFlags(f)
	complete(cmd, "once-per-from", fromStart, fromEnd)
	p.completeKeys(cmd, conditions...)
	return []*cobra.Command{cmd}
}

// read sets the key and the command, and refuses arguments that contradict each other.
func (h *held) read(fs *pflag.FlagSet, args []string, p *program) error {
	switch byFlag := fs.Changed("key"); {
	case byFlag && fs.ArgsLenAtDash() == 0:
		h.command = args
	case byFlag:
		return usagef("the key was given with --key; after the flags comes -- and the command")
	case len(args) == 0:
		return usagef("the key and the command are missing: dibs run [flags] KEY -- COMMAND")
	case fs.ArgsLenAtDash() == 0:
		return usagef("the key is missing: dibs run [flags] KEY -- COMMAND")
	case len(args) == 1:
		return usagef("the command is missing: dibs run [flags] %s -- COMMAND", quote(args[0]))
	case args[1] != "--":
		return usagef("after the key comes -- and then the command; flags come before the key")
	default:
		h.key, h.command = args[0], args[2:]
	}
	if fs.Changed("wait") && h.wait == 0 {
		h.skip = true
	}
	key := dibs.Key{Namespace: p.namespace, Name: h.key}
	if err := key.Validate(); err != nil {
		return usagef("%s", strings.TrimPrefix(err.Error(), "dibs: "))
	}
	switch {
	case len(h.command) == 0 || h.command[0] == "":
		return usagef("the command is missing")
	case h.lease < time.Second:
		return usagef("--lease: %v is too short; it must be at least 1s", h.lease)
	case h.wait < 0:
		return usagef("--wait: %v is negative", h.wait)
	case h.skip && fs.Changed("wait") && h.wait > 0:
		return usagef("--skip: it cannot be used together with --wait; remove one of them")
	case h.permits < 1 || h.permits > store.MaxPermits:
		return usagef("--permits: %d is out of range; it must be 1 to %d", h.permits, store.MaxPermits)
	case fs.Changed("once-per") && h.oncePer < time.Millisecond:
		return usagef("--once-per: %v is too short; it must be at least 1ms", h.oncePer)
	case h.from != fromStart && h.from != fromEnd:
		return usagef("--once-per-from: %v", suggest.NoneOf(h.from, fromStart, fromEnd))
	case h.oncePer == 0 && (h.failed || fs.Changed("once-per-from")):
		return usagef("--once-per: it is missing, and --once-per-from and --once-per-failed have no effect without it")
	case h.oncePer > 0 && h.permits > 1:
		return usagef("--once-per: it cannot be used together with --permits")
	case h.metrics != "" && filepath.Ext(h.metrics) != metricsExt:
		return usagef("--metrics-file: %q does not end in .prom, so no node exporter would read it", h.metrics)
	case filepath.Base(h.metrics) == metricsExt || !utf8.ValidString(h.metrics):
		return usagef("--metrics-file: %q has no name that can be a label; write one in UTF-8 before .prom", h.metrics)
	case strings.HasPrefix(p.namedStore(), "memory:"):
		return usagef("--store: memory: excludes no other process, because no other process sees it; name another store")
	}
	url, err := p.storeOf()
	if err == nil {
		err = anystore.CheckURL(url)
	}
	if err == nil && h.oncePer > 0 && strings.HasPrefix(url, "s3:") {
		// The next run, a day later, would be told that the last one was a moment ago.
		return usagef("--once-per: the time of an s3:// store passes only while programs use it, so %v can take days; name another store, or let the command look under its key whether this period's result is there", h.oncePer)
	}
	return cmp.Or(err, p.checkNames(key))
}

// named returns the error with the key in place of its digest, because the caller named it.
func (h *held) named(namespace string, err error) error {
	if err == nil {
		return nil
	}
	key := dibs.Key{Namespace: namespace, Name: h.key}
	return &failure{is: err, text: strings.ReplaceAll(err.Error(), key.Digest(), strconv.Quote(h.key))}
}

// killLost returns when the command is killed after its lease was lost: before another process can
// hold the key. That moment is past already if this process was stopped.
func (h *held) killLost(now, until time.Time) time.Time { return earlier(now, until).Add(h.grace()) }

// killLeft returns when the processes are killed that the command left behind: while the lease can
// be trusted, because it is settled afterwards.
func (h *held) killLeft(now, until time.Time) time.Time { return earlier(now.Add(h.grace()), until) }

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// grace is the time between TERM and KILL when the key is about to be lost: a fifth of the
// lease, at most 5 s.
func (h *held) grace() time.Duration { return min(h.lease/5, 5*time.Second) }

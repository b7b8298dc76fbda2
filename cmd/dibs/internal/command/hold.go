package command

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/metrics"
	"github.com/dibs-go/dibs/cmd/dibs/internal/process"
	"github.com/dibs-go/dibs/internal/stores"
)

// The variables that a command under a key finds in its environment.
const (
	envKey       = "DIBS_KEY"
	envNamespace = "DIBS_NAMESPACE"
	envFence     = "DIBS_FENCE"
	// envHeld names all keys that the command runs under, by digest, because a
	// command may run dibs again.
	envHeld = "DIBS_HELD"
)

// hold is what "dibs run" was told.
type hold struct {
	key     string
	command []string

	lease   time.Duration
	wait    time.Duration
	skip    bool
	permits int
	oncePer time.Duration
	from    string // when oncePer begins: fromStart or fromEnd
	failed  bool   // a run that failed counts for oncePer, too
	quiet   bool
	leave   bool // processes that the command leaves behind are its own business
	metrics string
}

// When the time of --once-per begins.
const (
	fromStart = "start"
	fromEnd   = "end"
)

func (p *program) hold() *cobra.Command {
	var h hold
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- COMMAND [ARG ...]",
		Short: "Run a command while holding a key",
		Long: `Runs a command while holding a key, so that no other "dibs run" with the same
key and store runs at the same time, on whatever host. Whoever comes meanwhile
waits, in the order of arrival; --skip and --wait say otherwise.

The command runs in a process group of its own, with DIBS_KEY, DIBS_NAMESPACE
and DIBS_FENCE in its environment. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1
and SIGUSR2 are passed on to the group; a second SIGINT kills it. When the
command ends, whatever it left running in its group is ended too, unless
--leave-children says otherwise. When the key
can no longer be renewed, the group is ended before anybody else can have the
key. When dibs run itself is killed, the group is killed with it, and the key
is free when its lease has run out.

Ends with the command's own exit code, with 128+n when signal n killed it, with
127 when it was not found and 126 when it is not executable; otherwise with

  64  the arguments are wrong, nothing was run
  69  the store is unreachable or unusable, nothing was run
  70  the key was lost while the command ran, or could not be settled after it
  75  the key is busy (--skip, or --wait is over), nothing was run
  130, 143  SIGINT or SIGTERM came while waiting, nothing was run`,
		Example: `  dibs run nightly-report -- ./report.sh
  dibs run --skip --once-per 20h backup -- pg_dump -f /backup/today.sql shop
  dibs run --permits 3 --wait 1m thumbnails -- ./make-thumbnails`,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			if err := h.read(cmd.Flags(), args, p); err != nil {
				return err
			}
			return p.measure(cmd.Context(), &h)
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows KEY is the command's
	f.StringVar(&h.key, "key", "", "a `KEY` that may begin with -, instead of the argument")
	f.DurationVar(&h.lease, "lease", dibs.DefaultTTL, "how long the key stays taken when nobody renews it any more; at least 1s")
	f.DurationVar(&h.lease, "ttl", dibs.DefaultTTL, "the same as --lease")
	f.DurationVar(&h.wait, "wait", 0, "how long to wait for the key (default: for ever); 0 is --skip")
	f.BoolVar(&h.skip, "skip", false, "do not wait: end with 75 when the key is busy")
	f.IntVar(&h.permits, "permits", 1, "how many may hold the key at once; another number than its holders' waits until they have gone")
	f.DurationVar(&h.oncePer, "once-per", 0, "do nothing, and end with 0, if a run that began within this time has succeeded")
	f.StringVar(&h.from, "once-per-from", fromStart, "`WHEN` the time of --once-per begins: start or end of the run")
	f.BoolVar(&h.failed, "once-per-failed", false, "let a run that failed count for --once-per, too, so that no other host tries again")
	f.BoolVar(&h.quiet, "quiet", false, "say nothing about a key that is busy or done; the command's output and errors stay")
	f.BoolVar(&h.leave, "leave-children", false, "leave processes alone that the command started and did not wait for")
	f.StringVar(&h.metrics, "metrics-file", "", "write what happened to `FILE`, whose name ends in .prom, for a node's exporter")
	p.storeFlags(f)
	return cmd
}

// read takes in the arguments and refuses what does not fit together.
func (h *hold) read(fs *pflag.FlagSet, args []string, p *program) error {
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
	case fs.Changed("lease") && fs.Changed("ttl"):
		return usagef("ttl: it is another name of --lease, which was given too")
	case h.lease < time.Second && fs.Changed("ttl"):
		return usagef("ttl: %v is too short; it must be at least 1s", h.lease)
	case h.lease < time.Second:
		return usagef("lease: %v is too short; it must be at least 1s", h.lease)
	case h.wait < 0:
		return usagef("wait: %v is negative", h.wait)
	case h.skip && fs.Changed("wait") && h.wait > 0:
		return usagef("skip: not together with --wait: the one waits, the other does not")
	case h.permits < 1 || h.permits > dibs.MaxPermits:
		return usagef("permits: %d is out of range; it must be 1 to %d", h.permits, dibs.MaxPermits)
	case fs.Changed("once-per") && h.oncePer < time.Millisecond:
		return usagef("once-per: %v is too short", h.oncePer)
	case h.from != fromStart && h.from != fromEnd:
		return usagef("once-per-from: %q is neither start nor end", h.from)
	case h.oncePer == 0 && (h.failed || fs.Changed("once-per-from")):
		return usagef("once-per: it is missing, and without it --once-per-from and --once-per-failed mean nothing")
	case h.oncePer > 0 && h.permits > 1:
		return usagef("once-per: not together with --permits")
	case h.metrics != "" && filepath.Ext(h.metrics) != metricsExt:
		return usagef("metrics-file: %q does not end in .prom, and would not be read", h.metrics)
	case filepath.Base(h.metrics) == metricsExt || !utf8.ValidString(h.metrics):
		return usagef("metrics-file: %q has no name that can be a label: one in UTF-8, before .prom", h.metrics)
	case strings.HasPrefix(p.storeOf(), "memory:"):
		return usagef("store: memory: would exclude nobody, because no other process sees it")
	}
	if slices.Contains(strings.Fields(p.env.Getenv(envHeld)), digest(key)) ||
		p.env.Getenv(envKey) == h.key && p.env.Getenv(envNamespace) == p.namespace {
		return usagef("the key %s is held by a dibs run around this one, and would be waited for in vain", strconv.Quote(h.key))
	}
	return nil
}

// digest names a key in the environment.
func digest(k dibs.Key) string {
	sum := sha256.Sum256([]byte(k.Namespace + "\x00" + k.Name))
	return hex.EncodeToString(sum[:16])
}

// grace is how long a command has between TERM and KILL when its key is about
// to be lost: a fifth of the lease, at most 5 s.
func (h *hold) grace() time.Duration { return min(h.lease/5, 5*time.Second) }

// runUnder takes the key, runs the command and settles. What happens to the key is told to
// m, if that is not nil.
func (p *program) runUnder(ctx context.Context, h *hold, m *metrics.Metrics) error {
	child := process.Command{Args: h.command, Stdin: p.env.Stdin, Stdout: p.env.Stdout, Stderr: p.env.Stderr}
	if err := child.Look(); err != nil {
		return err
	}
	// Signals are the command's, once there is one. Until then they end ctx too,
	// which knows of those that came before this one listened.
	signals := process.Listen()
	defer signals.Stop()
	store, err := stores.Open(ctx, p.storeOf())
	if err != nil {
		return err
	}
	defer store.Close()
	o := &dibs.Options{Namespace: p.namespace, TTL: h.lease}
	if m != nil {
		o.Observe, o.ObserveStore = m.Lease, m.StoreCall
	}
	client, err := dibs.New(store, o)
	if err != nil {
		return err
	}
	lease, err := p.takeKey(ctx, client, signals, h)
	if lease == nil {
		return errors.Join(err, quietly(client.Close()))
	}
	child.Env = append(os.Environ(),
		envKey+"="+h.key,
		envNamespace+"="+p.namespace,
		envFence+"="+strconv.FormatUint(lease.Fence(), 10),
		envHeld+"="+strings.TrimSpace(p.env.Getenv(envHeld)+" "+digest(lease.Key())),
	)
	if lease.Attempt() > 1 {
		p.say("the last holder of %s did not finish; this is attempt %d", strconv.Quote(h.key), lease.Attempt())
	}
	began := time.Now()
	code, err := p.command(&child, lease, signals, h)
	if err != nil {
		return errors.Join(err, quietly(lease.Release()), quietly(client.Close()))
	}
	return p.giveBack(client, lease, h, began, code)
}

// quietly drops the error of a clean-up whose cause is reported already.
func quietly(error) error { return nil }

// say prints a line for people.
func (p *program) say(format string, args ...any) {
	fmt.Fprintf(p.env.Stderr, "dibs run: "+format+"\n", args...)
}

// takeKey waits for the key. Neither a lease nor an error means that there is
// nothing to do.
func (p *program) takeKey(ctx context.Context, client *dibs.Client, signals *process.Signals, h *hold) (*dibs.Lease, error) {
	waiting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := signals.Until(func(s process.Signal) { cancel(s) })
	// The end of ctx is a signal too: one that came before this listened.
	early := func() {
		if i, ok := errors.AsType[*InterruptedError](context.Cause(ctx)); ok {
			cancel(process.Signal(i.Signal.(syscall.Signal)))
		}
	}
	defer context.AfterFunc(ctx, early)()
	lease, err := h.acquire(waiting, client)
	stop()
	early()
	if err == nil && waiting.Err() != nil {
		// It came at the last moment, and nothing was run yet.
		err = errors.Join(context.Cause(waiting), quietly(lease.Release()))
		lease = nil
	}
	done, isDone := errors.AsType[*dibs.DoneError](err)
	signal, isSignal := errors.AsType[process.Signal](err)
	switch {
	case isDone:
		if !h.quiet {
			p.say("%s: nothing to do", h.doneText(done.Record))
		}
		return nil, nil
	case isSignal:
		return nil, exit(signal.Code(), "%v while waiting for the key %s; its place is given up", signal, strconv.Quote(h.key))
	case errors.Is(err, dibs.ErrHeld) && h.quiet:
		return nil, &exitError{code: codeBusy}
	case errors.Is(err, dibs.ErrHeld) && h.skip:
		return nil, exit(codeBusy, "the key %s is busy", strconv.Quote(h.key))
	case errors.Is(err, dibs.ErrHeld):
		return nil, exit(codeBusy, "the key %s is still busy after %v", strconv.Quote(h.key), h.wait)
	case errors.Is(err, dibs.ErrUnknown):
		return nil, exit(codeBusy, "the key %s waits to be settled: the outcome of an earlier attempt is unknown, see dibs settle --help", strconv.Quote(h.key))
	case err != nil && !errors.Is(err, dibs.ErrStore):
		// What this claim alone met with: a row that somebody has locked, a limit.
		return nil, fmt.Errorf("%w: %w", stores.ErrUnusable, err)
	}
	return lease, err
}

// command runs the command under the lease and returns its exit code. It
// returns when nothing of the command's group is left.
func (p *program) command(c *process.Command, lease *dibs.Lease, signals *process.Signals, h *hold) (int, error) {
	running, err := process.Start(*c)
	if err != nil {
		return 0, err
	}
	interrupts := 0
	for {
		select {
		case s := <-signals.C():
			if s == process.Signal(syscall.SIGINT) {
				interrupts++
			}
			if interrupts > 1 {
				s = process.Signal(syscall.SIGKILL)
			}
			if err := running.Signal(syscall.Signal(s)); err != nil {
				p.say("%v could not be passed on: %v", s, err)
			}
		case <-lease.Context().Done():
			// Not a moment longer than nobody else can have the key; if that
			// is over already, because this process was stopped, at once.
			deadline := time.Now()
			if until := lease.Until(); until.Before(deadline) {
				deadline = until
			}
			running.End(deadline.Add(h.grace()))
			return running.Code(), nil
		case <-running.Exited():
			if h.leave {
				return running.Code(), nil
			}
			deadline := time.Now().Add(h.grace())
			if until := lease.Until(); until.Before(deadline) {
				deadline = until
			}
			if running.End(deadline) {
				p.say("the command left processes behind; they were ended (see --leave-children)")
			}
			return running.Code(), nil
		}
	}
}

// giveBack settles the lease and returns the error that ends the program with
// the right code.
func (p *program) giveBack(client *dibs.Client, lease *dibs.Lease, h *hold, began time.Time, code int) error {
	lost := errors.Is(lease.Err(), dibs.ErrLost)
	var err error
	took := time.Since(began)
	keep := h.oncePer
	if h.from == fromStart {
		keep -= took
	}
	if keep >= time.Millisecond && (code == 0 || h.failed) && !lost {
		err = p.complete(lease, h, onceRun{Took: took.Milliseconds(), Exit: code}, keep)
	}
	kept := err == nil
	if kept {
		err = lease.Release()
	}
	if closed := client.Close(); kept && closed == nil && (errors.Is(err, dibs.ErrStore) || errors.Is(err, dibs.ErrBusy)) {
		err = nil // it was made up for while the client was closed
	}
	switch {
	case lost || errors.Is(err, dibs.ErrLost):
		return exit(codeLost, "the key %s was lost while the command ran (which ended with %d): somebody else may have had it meanwhile", strconv.Quote(h.key), code)
	case err != nil:
		return exit(codeLost, "the command ended with %d, but the key %s could not be settled: %v; it is free when its lease has run out", code, strconv.Quote(h.key), err)
	case code != 0:
		return &exitError{code: code}
	}
	return nil
}

// exitError ends the program with a code, and without a word of its own if it
// has no text.
type exitError struct {
	code int
	text string
}

func exit(code int, format string, args ...any) error {
	return &exitError{code: code, text: fmt.Sprintf(format, args...)}
}

func (e *exitError) Error() string { return e.text }

//go:build unix

package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/process"
	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/stores/anystore"
)

// runUnderKey acquires the key, runs the command and settles.
func (p *program) runUnderKey(ctx context.Context, h *held) error {
	child := process.Command{Args: h.command, Stdin: p.env.Stdin, Stdout: p.env.Stdout, Stderr: p.env.Stderr}
	if err := child.Look(); err != nil {
		return notStarted(err)
	}
	// Signals are for the command once it runs. ctx has the signals from before Listen.
	signals := process.Listen()
	defer signals.Stop()
	store, err := anystore.Open(ctx, p.namedStore(), anystore.ToUse)
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := dibs.New(store.Store, &dibs.Options{Namespace: p.namespace, TTL: h.lease, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if err := p.checkLeases(ctx, store, dibs.Key{Namespace: p.namespace, Name: h.key}); err != nil {
		return errors.Join(err, quietly(client.Close()))
	}
	lease, err := p.acquire(ctx, client, signals, h)
	if lease == nil {
		return errors.Join(err, quietly(client.Close()))
	}
	child.Env = append(os.Environ(),
		envKey+"="+h.key,
		envNamespace+"="+p.namespace,
		envFence+"="+strconv.FormatUint(lease.Fence(), 10),
		p.under(store, lease),
	)
	if lease.Attempt() > 1 {
		p.say("the last holder of %s did not finish; this is attempt %d", strconv.Quote(h.key), lease.Attempt())
	}
	began := time.Now()
	code, err := p.command(&child, lease, signals, h)
	if err != nil {
		return errors.Join(notStarted(err), quietly(lease.Release()), quietly(client.Close()))
	}
	return p.settleRun(client, lease, h, began, code)
}

// notStarted gives an error of process the exit code that shells have for it.
func notStarted(err error) error {
	if s, ok := errors.AsType[*process.StartError](err); ok {
		return exitf(s.Code, "%v", s)
	}
	return err
}

// quietly drops the error of a clean-up after another error.
func quietly(error) error { return nil }

// say prints a line for people.
func (p *program) say(format string, args ...any) {
	fmt.Fprintf(p.env.Stderr, "dibs run: "+format+"\n", args...)
}

// acquire waits for the key. It returns neither a lease nor an error if there is nothing
// to do.
func (p *program) acquire(ctx context.Context, client *dibs.Client, signals process.Signals, h *held) (*dibs.Lease, error) {
	waiting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := signals.Until(func(s process.Signal) { cancel(s) })
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
		// The signal came together with the grant, and nothing was run yet.
		err = errors.Join(context.Cause(waiting), quietly(lease.Release()))
		lease = nil
	}
	done, isDone := errors.AsType[*dibs.DoneError](err)
	signal, isSignal := errors.AsType[process.Signal](err)
	key := strconv.Quote(h.key)
	switch {
	case isDone:
		if run, _ := runrecord.Read(done.Record.Data); run.Exit == 0 {
			h.succeeded = time.Now().Add(-done.Record.Age)
		}
		if !h.quiet {
			p.say("%s: nothing to do", h.doneText(done.Record))
		}
		return nil, nil
	case isSignal:
		return nil, exitf(signal.Code(), "%v while waiting for the key %s; its place in the queue is cancelled", signal, key)
	case errors.Is(err, dibs.ErrHeld) && h.quiet:
		return nil, &exitError{code: codeBusy}
	case errors.Is(err, dibs.ErrHeld) && h.skip:
		return nil, exitf(codeBusy, "the key %s is busy", key)
	case errors.Is(err, dibs.ErrHeld):
		return nil, exitf(codeBusy, "the key %s is still busy after %v", key, h.wait)
	case errors.Is(err, dibs.ErrUnknown):
		return nil, exitf(codeBusy, "the key %s must be resolved first, because the outcome of an earlier attempt is unknown: see dibs resolve --help", key)
	case err != nil && !errors.Is(err, dibs.ErrStore):
		// An error of this claim alone: a locked row, a limit.
		return nil, fmt.Errorf("%w: %w", anystore.ErrUnusable, err)
	}
	return lease, err
}

// command runs the command under the lease and returns its exit code, after the command's
// process group has ended.
func (p *program) command(c *process.Command, lease *dibs.Lease, signals process.Signals, h *held) (int, error) {
	running, err := process.Start(*c)
	if err != nil {
		return 0, err
	}
	job := process.Suspension{
		Stopping: func() {
			p.say("stopped; meanwhile the lease of %s is not renewed: if it is not continued within %s, the command is ended", strconv.Quote(h.key), span(time.Until(lease.Until())))
		},
		MayContinue: func() bool { return lease.Err() == nil },
	}
	interrupts := 0
	for {
		select {
		case received := <-signals:
			s := received.(syscall.Signal)
			if s == syscall.SIGINT {
				interrupts++
			}
			if interrupts > 1 {
				s = syscall.SIGKILL
			}
			if err := running.Signal(s); err != nil {
				p.say("%v was not passed on to the command: %v", s, err)
			}
		case stopped := <-running.Stops():
			running.CommandStopped(stopped, job)
		case asked := <-running.Asks():
			running.AskedToStop(asked, job)
		case <-lease.Context().Done():
			running.End(h.killLost(time.Now(), lease.Until()))
			return running.Code(), nil
		case <-running.Exited():
			if h.leave {
				running.Leave()
				return running.Code(), nil
			}
			if running.End(h.killLeft(time.Now(), lease.Until())) {
				p.say("the command left processes behind; they were ended (see --leave-children)")
			}
			return running.Code(), nil
		}
	}
}

// settleRun settles the lease, and returns the error with the exit code.
func (p *program) settleRun(client *dibs.Client, lease *dibs.Lease, h *held, began time.Time, code int) error {
	lost := errors.Is(lease.Err(), dibs.ErrLost)
	var err error
	took := time.Since(began)
	keep := h.oncePer
	if h.from == fromStart {
		keep -= took
	}
	counts := h.oncePer > 0 && (code == 0 || h.failed) && !lost
	if counts && keep >= time.Millisecond {
		err = p.complete(lease, h, runrecord.Run{Began: began.UTC(), Ended: began.Add(took).UTC(), TookMS: took.Milliseconds(), Exit: code}, keep)
	}
	completed := err == nil
	if completed {
		err = lease.Release()
	}
	if closed := client.Close(); completed && closed == nil && (errors.Is(err, dibs.ErrStore) || errors.Is(err, dibs.ErrBusy)) {
		err = nil // because Close has released the key
	}
	key := strconv.Quote(h.key)
	if counts && keep < time.Millisecond {
		p.say("%s took %s, and --once-per is %v: another run can begin now", key, span(took), h.oncePer)
	}
	switch {
	case lost || errors.Is(err, dibs.ErrLost):
		return exitf(codeLost, "the key %s was lost while the command ran (which exited with %d): another process may have held it meanwhile", key, code)
	case err != nil:
		return exitf(codeLost, "the command exited with %d, but the key %s could not be settled: %v; it is free when its lease expires", code, key, err)
	case code != 0:
		return &exitError{code: code}
	}
	h.succeeded = time.Now()
	return nil
}

package race

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pace"
	"github.com/dibs-go/dibs/stores/anystore"
)

// task is what a worker process reads from its standard input. It is not an argument,
// because the store's URL may have a password.
type task struct {
	File  number        `json:"file"`
	Think time.Duration `json:"think"`

	Key       string `json:"key,omitempty"` // "" is without a lock
	Store     string `json:"store,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// processes runs the task in each worker. The time counts from the moment at which all
// workers are ready, because starting a process takes longer on some machines.
func (t task) processes(ctx context.Context) ([]step, time.Duration, error) {
	var ready, all sync.WaitGroup
	ready.Add(workers)
	began := sync.OnceValue(time.Now)
	steps, errs := make([]step, workers), make([]error, workers)
	for i := range workers {
		all.Go(func() {
			isReady := sync.OnceFunc(ready.Done)
			defer isReady()
			steps[i], errs[i] = t.process(ctx, func() error {
				isReady()
				ready.Wait()
				began()
				return pace.Sleep(ctx, time.Duration(i)*apart)
			})
		})
	}
	all.Wait()
	return steps, time.Since(began()), errors.Join(errs...)
}

// workerArg, as the program's only argument, makes a process a worker.
const workerArg = "__race-worker"

// stopLimit bounds how long a worker may take to stop before it is killed.
const stopLimit = 10 * time.Second

// process starts a worker, and lets it begin when start has returned. The worker reads the
// task, answers true when it is ready, begins at the next message, and answers its step.
func (t task) process(ctx context.Context, start func() error) (s step, err error) {
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	cmd := exec.CommandContext(ctx, self, workerArg)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	// A worker stops at the end of its input. If it were killed, it would hold its key until
	// the lease expires.
	cmd.Cancel, cmd.WaitDelay = func() error { return in.Close() }, stopLimit
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		return s, err
	}
	messages, answers := json.NewEncoder(in), json.NewDecoder(out)
	err = errors.Join(messages.Encode(t), answers.Decode(new(bool)))
	if err == nil {
		err = start()
	}
	if err == nil {
		err = errors.Join(messages.Encode(true), answers.Decode(&s))
	}
	_ = in.Close()
	if ended := cmd.Wait(); ended != nil {
		err = fmt.Errorf("a worker ended with %w: %s", ended, strings.TrimSpace(stderr.String()))
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return s, err
}

// Worker makes this process a worker if its arguments say so, and does not return then. A
// program that uses this package calls Worker first in main.
func Worker() {
	if len(os.Args) != 2 || os.Args[1] != workerArg {
		return
	}
	// Ctrl-C reaches workers too. They stop at the end of their input, and release the key.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	if err := work(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// work is the worker's side of process.
func work(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	messages, answers := json.NewDecoder(in), json.NewEncoder(out)
	var t task
	if err := messages.Decode(&t); err != nil {
		return err
	}
	add := t.add
	if t.Key != "" {
		store, err := anystore.Open(ctx, t.Store)
		if err != nil {
			return err
		}
		defer store.Close()
		client, err := dibs.New(store.Store, &dibs.Options{Namespace: t.Namespace, Label: "dibs race", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		defer client.Close()
		add = func(ctx context.Context) (s step, err error) {
			err = client.Do(ctx, t.Key, func(ctx context.Context) error {
				s, err = t.add(ctx)
				return err
			})
			return s, err
		}
	}
	if err := errors.Join(answers.Encode(true), messages.Decode(new(bool))); err != nil {
		return err
	}
	go func() {
		_ = messages.Decode(new(bool)) // returns at the end of the input
		cancel()
	}()
	s, err := add(ctx)
	if err != nil {
		return err
	}
	return answers.Encode(s)
}

// add reads, thinks, adds one and writes.
func (t task) add(ctx context.Context) (step, error) {
	n, err := t.File.read()
	if err == nil {
		err = pace.Sleep(ctx, t.Think)
	}
	if err != nil {
		return step{}, err
	}
	return step{Read: n, Wrote: n + 1}, t.File.write(n + 1)
}

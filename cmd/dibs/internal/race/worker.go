package race

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/stores"
)

// task is what a worker is told.
type task struct {
	Way   way           `json:"way"`
	File  string        `json:"file,omitempty"`
	Cell  string        `json:"cell,omitempty"`
	Row   string        `json:"row,omitempty"`
	Think time.Duration `json:"think"`

	Key       string `json:"key"` // that is held with a lease
	Store     string `json:"store"`
	Namespace string `json:"namespace,omitempty"`
}

// perform adds one in the task's way.
func (t *task) perform(ctx context.Context, client *dibs.Client, v number) (s step, err error) {
	switch t.Way {
	case bare:
		return t.do(ctx, v)
	case lease:
		err = client.Do(ctx, t.Key, func(ctx context.Context) error {
			s, err = t.do(ctx, v)
			return err
		})
		return s, err
	}
	r, ok := v.(*row)
	if !ok {
		return s, fmt.Errorf("%s: the number is in no database", t.Way)
	}
	return r.under(ctx, t.Way, t.think)
}

// do reads, thinks, adds one and writes.
func (t *task) do(ctx context.Context, v number) (step, error) {
	n, err := v.read(ctx)
	if err == nil {
		err = t.think(ctx)
	}
	if err != nil {
		return step{}, err
	}
	return step{Read: n, Wrote: n + 1}, v.write(ctx, n+1)
}

func (t *task) think(ctx context.Context) error { return pause(ctx, t.Think) }

// label is what operators see.
const label = "dibs race"

// goroutines lets workers of this process loose, a moment apart.
func (r *race) goroutines(ctx context.Context, t task) ([]step, time.Duration, error) {
	client, err := dibs.New(r.o.Store, &dibs.Options{Namespace: t.Namespace, Label: label})
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	steps, err := together(func(i int) (step, error) {
		if err := pause(ctx, time.Duration(i)*apart); err != nil {
			return step{}, err
		}
		return t.perform(ctx, client, r.number)
	})
	took := time.Since(began)
	return steps, took, errors.Join(err, client.Close())
}

// processes is goroutines with a process for each worker. They start when all
// are ready, so that how long a process takes to start does not count.
func (r *race) processes(ctx context.Context, t task) ([]step, time.Duration, error) {
	t.Store = r.o.URL
	var ready sync.WaitGroup
	ready.Add(workers)
	began := sync.OnceValue(time.Now)
	steps, err := together(func(i int) (step, error) {
		var once sync.Once
		isReady := func() { once.Do(ready.Done) }
		defer isReady()
		return t.elsewhere(ctx, func() error {
			isReady()
			ready.Wait()
			began()
			return pause(ctx, time.Duration(i)*apart)
		})
	})
	return steps, time.Since(began()), err
}

// together runs all workers and waits for them.
func together(work func(i int) (step, error)) ([]step, error) {
	var all sync.WaitGroup
	steps := make([]step, workers)
	errs := make([]error, workers)
	for i := range workers {
		all.Go(func() { steps[i], errs[i] = work(i) })
	}
	all.Wait()
	return steps, errors.Join(errs...)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// patience is how long a worker may take to end that is told to.
const patience = 10 * time.Second

// workerArg as the program's only argument makes it a worker. The task, which
// may have a password in it, comes by standard input.
const workerArg = "__race-worker"

// elsewhere performs the task in another process, after start has returned.
func (t *task) elsewhere(ctx context.Context, start func() error) (s step, err error) {
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	cmd := exec.CommandContext(ctx, self, workerArg)
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return s, err
	}
	// Killed, it would keep its key for as long as a lease lasts.
	cmd.Cancel, cmd.WaitDelay = in.Close, patience
	out, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	if err := cmd.Start(); err != nil {
		return s, err
	}
	words, answers := json.NewEncoder(in), json.NewDecoder(out)
	var ready bool
	err = errors.Join(words.Encode(t), answers.Decode(&ready))
	if err == nil {
		err = start()
	}
	if err == nil {
		err = errors.Join(words.Encode(true), answers.Decode(&s))
	}
	_ = in.Close()
	if ended := cmd.Wait(); ended != nil {
		err = fmt.Errorf("a worker ended with %w: %s", ended, strings.TrimSpace(said.String()))
	}
	return s, err
}

// Worker makes this process a worker and does not return, if that is what its
// arguments say. A program that uses this package calls it first in main.
func Worker() {
	if len(os.Args) != 2 || os.Args[1] != workerArg {
		return
	}
	// A worker whose parent is gone finds its input at an end. That is what it listens to:
	// Ctrl-C reaches it as well.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	if err := work(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// work is the worker's end of elsewhere.
func work(in io.Reader, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	words, answers := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	var t task
	if err := words.Decode(&t); err != nil {
		return err
	}
	store, err := stores.Open(ctx, t.Store)
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := dibs.New(store, &dibs.Options{Namespace: t.Namespace, Label: label})
	if err != nil {
		return err
	}
	defer client.Close()
	v, err := t.at(store)
	if err != nil {
		return err
	}
	defer v.close()
	var start bool
	if err := errors.Join(answers.Encode(true), words.Decode(&start)); err != nil {
		return err
	}
	go func() {
		_ = words.Decode(new(bool)) // nothing more is said, so that this is the end
		cancel()
	}()
	s, err := t.perform(ctx, client, v)
	if err != nil {
		return err
	}
	return answers.Encode(s)
}

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

const (
	adders      = 5
	firstNumber = 100
	// An adder thinks for longer than the pause before the next adder, and for less than
	// two pauses. So every other update is lost, not every update.
	apart   = 40 * time.Millisecond
	thought = 60 * time.Millisecond
	// ready is the time in which the processes start.
	ready = 300 * time.Millisecond
	// tries bounds how often the number is counted without a lock while a slow machine loses
	// no update. Each time the adders think twice as long.
	tries = 4
)

// ErrNotShown says that no update was lost without a lock, or that one was lost with it.
var ErrNotShown = errors.New("the number did not end as expected")

// step is what one adder read and wrote.
type step struct{ read, wrote int }

// count is the outcome of five adders.
type count struct {
	steps []step // in the order of the reads
	n     int    // the number at the end
	took  time.Duration
}

func (c count) lost() int { return firstNumber + adders - c.n }

// showNumber has processes add to a number without a lock and then under dibs run, and writes to
// w what happened. It returns ErrNotShown unless updates were lost without a lock and none with it.
func (d *demo) showNumber(ctx context.Context, w io.Writer) error {
	fmt.Fprintf(w, "%d processes each read a number, think, add one and write it back.\nIt is %d, and should become %d.\n\n",
		adders, firstNumber, firstNumber+adders)
	think := thought
	without, err := d.count(ctx, think, false)
	for n := 1; n < tries && err == nil && without.lost() == 0; n++ {
		think *= 2
		without, err = d.count(ctx, think, false)
	}
	if err != nil {
		return err
	}
	without.show(w, "without a lock")
	with, err := d.count(ctx, thought, true)
	if err != nil {
		return err
	}
	with.show(w, "with dibs")
	switch {
	case with.lost() != 0:
		return fmt.Errorf("%w: with dibs it became %d, not %d", ErrNotShown, with.n, firstNumber+adders)
	case without.lost() == 0:
		return fmt.Errorf("%w: no update was lost without a lock either, because this machine is too slow or too busy; run it again", ErrNotShown)
	}
	return nil
}

// count starts the adders and waits for them.
func (d *demo) count(ctx context.Context, think time.Duration, locked bool) (c count, err error) {
	n := number(filepath.Join(d.dir, "number"))
	if err := n.write(firstNumber); err != nil {
		return c, err
	}
	began := time.Now()
	if !locked {
		began = began.Add(ready)
	}
	var all sync.WaitGroup
	c.steps = make([]step, adders)
	errs := make([]error, adders)
	for i := range adders {
		all.Go(func() {
			args := []string{addArg, string(n), think.String(), strconv.FormatInt(began.Add(time.Duration(i)*apart).UnixNano(), 10)}
			if locked {
				args = append([]string{"run", "--namespace", d.namespace, "number", "--", d.program}, args...)
				args[len(args)-1] = "0" // because an adder that has the key has no reason to wait
				_ = backoff.Sleep(ctx, time.Duration(i)*apart)
			}
			c.steps[i], errs[i] = d.add(ctx, args)
		})
	}
	all.Wait()
	c.took = time.Since(began)
	if ctx.Err() != nil {
		return c, context.Cause(ctx)
	}
	slices.SortStableFunc(c.steps, func(a, b step) int { return a.read - b.read })
	c.n, err = n.read()
	return c, errors.Join(append(errs, err)...)
}

// add runs an adder.
func (d *demo) add(ctx context.Context, args []string) (s step, err error) {
	cmd := d.command(ctx, args...)
	// A dibs run that is killed holds its key until the lease expires.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, stopLimit
	cmd.SysProcAttr = ownGroup
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return s, fmt.Errorf("an adder ended with %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if err == nil {
		_, err = fmt.Sscan(stdout.String(), &s.read, &s.wrote)
	}
	return s, err
}

// show writes the count for people.
func (c count) show(w io.Writer, name string) {
	var reads, writes strings.Builder
	for _, s := range c.steps {
		fmt.Fprintf(&reads, " %4d", s.read)
		fmt.Fprintf(&writes, " %4d", s.wrote)
	}
	verdict := fmt.Sprintf("%d updates are lost", c.lost())
	switch c.lost() {
	case 0:
		verdict = "every update counts"
	case 1:
		verdict = "1 update is lost"
	}
	fmt.Fprintf(w, "%-16sread %s\n%-16swrote%s\n%-16s%d: %s, in %s s\n\n",
		name, &reads, "", &writes, "", c.n, verdict, seconds(c.took))
}

// addArg, as the program's first argument, makes a process an adder. The path of the number, the
// time to think and the moment to begin follow.
const addArg = "__add"

// Add makes this process an adder if its arguments say so, and does not return then. A program
// that uses this package calls Add first in main.
func Add() {
	if len(os.Args) != 5 || os.Args[1] != addArg {
		return
	}
	think, thinkErr := time.ParseDuration(os.Args[3])
	begin, beginErr := strconv.ParseInt(os.Args[4], 10, 64)
	err := errors.Join(thinkErr, beginErr)
	if err == nil {
		time.Sleep(time.Until(time.Unix(0, begin)))
		err = number(os.Args[2]).add(think, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// number is the path of a file with the number. Its three digits are overwritten in place, so
// that a reader finds a number at every moment.
type number string

// add reads, thinks, adds one and writes, and tells out what it read and wrote.
func (n number) add(think time.Duration, out io.Writer) error {
	v, err := n.read()
	if err != nil {
		return err
	}
	time.Sleep(think)
	if err := n.write(v + 1); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, v, v+1)
	return err
}

func (n number) read() (v int, err error) {
	text, err := os.ReadFile(string(n))
	if err == nil {
		_, err = fmt.Sscan(string(text), &v)
	}
	return v, err
}

func (n number) write(v int) error {
	file, err := os.OpenFile(string(n), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%03d\n", v)
	return errors.Join(err, file.Close())
}

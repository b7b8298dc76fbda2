// Package race shows the lost update and its cure. Processes each read a number, think, add
// one and write it back: first without a lock, then while they hold a key of the store.
package race

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Options configure Run.
type Options struct {
	// Store is the URL of a store that several processes can share.
	Store string
	// Namespace is the namespace of the key; "" is the store's default.
	Namespace string
}

const (
	workers = 5
	first   = 100
	// A worker thinks for longer than the pause before the next worker, and for less than
	// two pauses. So every other update is lost, not every update.
	apart   = 40 * time.Millisecond
	thought = 60 * time.Millisecond
	// tries bounds how often the race without a lock runs while a slow machine loses no
	// update. Each time the workers think twice as long.
	tries = 4
)

// ErrNotShown says that no update was lost without a lock, or that one was lost with it.
var ErrNotShown = errors.New("the race did not end as expected")

// step is what one worker read and wrote.
type step struct {
	Read  int `json:"read"`
	Wrote int `json:"wrote"`
}

// Run races without a lock and then with one, and writes to w what happened. It returns
// ErrNotShown unless updates were lost without a lock and none with it.
func Run(ctx context.Context, o Options, w io.Writer) (err error) {
	file, err := os.CreateTemp("", "dibs-race-*")
	if err != nil {
		return err
	}
	n := number(file.Name())
	defer func() { err = errors.Join(err, n.remove()) }()
	if err := file.Close(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d processes each read a number, think, add one and write it back.\nIt is %d, and should become %d.\n\n",
		workers, first, first+workers)

	bare := task{File: n, Think: thought}
	var without result
	for range tries {
		if without, err = bare.run(ctx); err != nil {
			return err
		}
		if without.lost() > 0 {
			break
		}
		bare.Think *= 2
	}
	without.show(w, "without a lock")
	fmt.Fprintln(w)

	key := "dibs race " + store.NewToken().ID()
	with, err := task{File: n, Think: thought, Key: key, Store: o.Store, Namespace: o.Namespace}.run(ctx)
	if err != nil {
		return err
	}
	with.show(w, "with dibs")
	switch {
	case with.lost() != 0:
		return fmt.Errorf("%w: with dibs the number became %d, not %d", ErrNotShown, with.n, first+workers)
	case without.lost() == 0:
		return fmt.Errorf("%w: no update was lost without a lock either, because this machine is too slow or too busy; run it again", ErrNotShown)
	}
	return nil
}

// result is the outcome of one race.
type result struct {
	steps []step // in the order of the reads
	n     int    // the number at the end
	took  time.Duration
}

func (r result) lost() int { return first + workers - r.n }

// run starts the workers and waits for them.
func (t task) run(ctx context.Context) (r result, err error) {
	if err := t.File.write(first); err != nil {
		return r, err
	}
	if r.steps, r.took, err = t.processes(ctx); err != nil {
		return r, err
	}
	slices.SortStableFunc(r.steps, func(a, b step) int { return a.Read - b.Read })
	r.n, err = t.File.read()
	return r, err
}

// show writes the result for people.
func (r result) show(w io.Writer, name string) {
	var reads, writes strings.Builder
	for _, s := range r.steps {
		fmt.Fprintf(&reads, " %4d", s.Read)
		fmt.Fprintf(&writes, " %4d", s.Wrote)
	}
	verdict := fmt.Sprintf("%d updates are lost", r.lost())
	switch r.lost() {
	case 0:
		verdict = "every update counts"
	case 1:
		verdict = "1 update is lost"
	}
	fmt.Fprintf(w, "%-16sread %s\n%-16swrote%s\n%-16s%d: %s, in %v\n",
		name, &reads, "", &writes, "", r.n, verdict, r.took.Round(time.Millisecond))
}

// number is the path of a file with the number that the workers race for. Its three digits
// are overwritten in place, so that a reader finds a number at every moment.
type number string

func (n number) read() (v int, err error) {
	text, err := os.ReadFile(string(n))
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d", &v)
	}
	return v, err
}

func (n number) write(v int) error {
	file, err := os.OpenFile(string(n), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%03d\n", v)
	return errors.Join(err, file.Close())
}

func (n number) remove() error { return os.Remove(string(n)) }

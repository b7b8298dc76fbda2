// Package race shows the lost update, and cures it: workers that each read a
// number, think, add one and write it back, first as they please and then one at
// a time, holding a key.
package race

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/stores"
)

// Options say how to race.
type Options struct {
	Store     *stores.Store
	URL       string // the store's, for other processes
	Namespace string
	// Processes makes each worker a process of its own.
	Processes bool
}

const (
	workers = 5
	begin   = 100
	// A worker thinks for a while that is longer than the next one lets it wait,
	// but not than two do: so every other update is lost, not all.
	apart   = 40 * time.Millisecond
	thought = 60 * time.Millisecond
	// tries is how often the race without the key is run when, on a slow
	// machine, nothing was lost; each time the workers think twice as long.
	tries = 4
)

// ErrNotShown says that nothing was lost without the key, or something with it.
var ErrNotShown = errors.New("the race did not end as it should")

// step is what one worker did.
type step struct {
	Read  int `json:"read"`
	Wrote int `json:"wrote"`
}

// race is one run of Run.
type race struct {
	o      Options
	key    string
	number number
}

// Run races twice, and writes down what happened. It returns an ErrNotShown
// unless updates were lost without the key and none with it.
func Run(ctx context.Context, o Options, w io.Writer) error {
	// Neither number nor key is anybody else's, and neither is left behind.
	r := &race{o: o, key: "dibs race " + dibs.NewToken().ID()}
	var err error
	if r.number, err = newNumber(o.Store); err != nil {
		return err
	}
	defer r.number.remove(ctx)
	kind := "goroutines"
	if o.Processes {
		kind = "processes"
	}
	fmt.Fprintf(w, "%d %s each read a number, think, add one and write it back.\nIt is %d, and should become %d.\n\n",
		workers, kind, begin, begin+workers)

	bare, think := begin+workers, thought
	var steps []step
	for try := 0; try < tries && bare == begin+workers; try++ {
		if steps, bare, err = r.run(ctx, false, think); err != nil {
			return err
		}
		think *= 2
	}
	tell(w, "without a lock", steps, bare)
	fmt.Fprintln(w)
	steps, guarded, err := r.run(ctx, true, thought)
	if err != nil {
		return err
	}
	tell(w, "with dibs", steps, guarded)

	switch {
	case guarded != begin+workers:
		return fmt.Errorf("%w: with the key held the number became %d, not %d", ErrNotShown, guarded, begin+workers)
	case bare >= begin+workers:
		return fmt.Errorf("%w: nothing was lost without the key either; this machine is too slow or too busy to show it", ErrNotShown)
	}
	return nil
}

// run lets the workers loose and returns what they did, in the order in which
// they read, and what became of the number.
func (r *race) run(ctx context.Context, guarded bool, think time.Duration) ([]step, int, error) {
	if err := r.number.write(ctx, begin); err != nil {
		return nil, 0, err
	}
	task := task{Think: think, Namespace: r.o.Namespace}
	r.number.tell(&task)
	if guarded {
		task.Key = r.key
	}
	crew := r.goroutines
	if r.o.Processes {
		crew = r.processes
	}
	steps, err := crew(ctx, task)
	if err != nil {
		return nil, 0, err
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.Read - b.Read })
	n, err := r.number.read(ctx)
	return steps, n, err
}

// tell writes down one race.
func tell(w io.Writer, name string, steps []step, n int) {
	var reads, writes strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&reads, " %4d", s.Read)
		fmt.Fprintf(&writes, " %4d", s.Wrote)
	}
	verdict := "every update counts"
	switch lost := begin + workers - n; {
	case lost == 1:
		verdict = "1 update is lost"
	case lost > 1:
		verdict = fmt.Sprintf("%d updates are lost", lost)
	}
	fmt.Fprintf(w, "%-16sread %s\n%-16swrote%s\n%-16s%d: %s\n", name, &reads, "", &writes, "", n, verdict)
}

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
	"github.com/dibs-go/dibs/internal/stores"
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

// way is how the workers add one.
type way string

const (
	bare     way = "without a lock"
	rowLock  way = "row lock"
	version  way = "version column"
	advisory way = "advisory lock"
	lease    way = "with dibs"
)

// step is what one worker did.
type step struct {
	Read  int `json:"read"`
	Wrote int `json:"wrote"`
	Again int `json:"again,omitempty"` // how often it had to begin again
}

// race is one run of Run.
type race struct {
	o      Options
	key    string
	number number
}

// Run races as often as there are ways, and writes down what happened. It returns
// an ErrNotShown unless updates were lost without a lock and none with one.
func Run(ctx context.Context, o Options, w io.Writer) (err error) {
	// Neither number nor key is anybody else's, and neither is left behind.
	r := &race{o: o, key: "dibs race " + dibs.NewToken().ID()}
	var why string
	if r.number, why, err = newNumber(ctx, o.Store); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, r.number.remove(ctx))
		r.number.close()
	}()
	kind := "goroutines"
	if o.Processes {
		kind = "processes"
	}
	fmt.Fprintf(w, "%d %s each read a number, think, add one and write it back.\nIt is %d, and should become %d.\n",
		workers, kind, begin, begin+workers)
	if why != "" {
		fmt.Fprintln(w, why)
	}
	fmt.Fprintln(w)

	lost, err := r.showDisease(ctx, w)
	if err != nil {
		return err
	}
	var cures []way
	if row, ok := r.number.(*row); ok {
		cures = row.cures()
	}
	for _, way := range append(cures, lease) {
		result, err := r.run(ctx, way, thought)
		if err != nil {
			return err
		}
		fmt.Fprintln(w)
		tell(w, way, result)
		if result.n != begin+workers {
			return fmt.Errorf("%w: %s the number became %d, not %d", ErrNotShown, way, result.n, begin+workers)
		}
	}
	if !lost {
		return fmt.Errorf("%w: nothing was lost without the key either; this machine is too slow or too busy to show it", ErrNotShown)
	}
	return nil
}

// showDisease races without a lock, until something is lost, and reports whether
// it was.
func (r *race) showDisease(ctx context.Context, w io.Writer) (lost bool, err error) {
	think := thought
	var last result
	for try := 0; try < tries && !lost; try++ {
		if last, err = r.run(ctx, bare, think); err != nil {
			return false, err
		}
		lost = last.n < begin+workers
		think *= 2
	}
	tell(w, bare, last)
	return lost, nil
}

// result is what became of one race.
type result struct {
	steps []step // in the order in which the workers read
	n     int    // the number
	took  time.Duration
}

// run lets the workers loose.
func (r *race) run(ctx context.Context, w way, think time.Duration) (got result, err error) {
	if err := r.number.write(ctx, begin); err != nil {
		return got, err
	}
	task := task{Way: w, Think: think, Key: r.key, Namespace: r.o.Namespace}
	r.number.tell(&task)
	crew := r.goroutines
	if r.o.Processes {
		crew = r.processes
	}
	if got.steps, got.took, err = crew(ctx, task); err != nil {
		return got, err
	}
	slices.SortStableFunc(got.steps, func(a, b step) int { return a.Read - b.Read })
	got.n, err = r.number.read(ctx)
	return got, err
}

// tell writes down one race.
func tell(w io.Writer, name way, r result) {
	var reads, writes strings.Builder
	again := 0
	for _, s := range r.steps {
		fmt.Fprintf(&reads, " %4d", s.Read)
		fmt.Fprintf(&writes, " %4d", s.Wrote)
		again += s.Again
	}
	verdict := "every update counts"
	switch lost := begin + workers - r.n; {
	case lost == 1:
		verdict = "1 update is lost"
	case lost > 1:
		verdict = fmt.Sprintf("%d updates are lost", lost)
	}
	verdict += ", in " + r.took.Round(time.Millisecond).String()
	if again > 0 {
		verdict += fmt.Sprintf(", %d attempts in vain", again)
	}
	fmt.Fprintf(w, "%-16sread %s\n%-16swrote%s\n%-16s%d: %s\n", name, &reads, "", &writes, "", r.n, verdict)
}

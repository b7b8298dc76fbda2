package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
)

// Run lets workers use the store while faults strike, and returns what came of it; see
// Report.OK. When ctx ends, the part under fire does, and the rest follows in order.
//
// Its error says that nothing came of it: ErrOptions, an error of Open, or that a worker cannot
// be started.
func Run(ctx context.Context, o *Options) (*Report, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &run{Options: options, id: dibs.NewToken().ID()}
	r.namespace = "torture-" + r.id
	if err := r.setUp(ctx); err != nil {
		return nil, errors.Join(err, r.tearDown())
	}
	if err := r.perform(ctx); err != nil {
		r.temporary = false // whoever looks into it needs the histories
		return nil, errors.Join(fmt.Errorf("%w; the histories are in %s", err, r.Dir), r.tearDown())
	}
	if err := r.tearDown(); err != nil {
		return nil, err
	}
	return r.report, nil
}

// run is one run.
type run struct {
	Options
	id        string
	namespace string
	began     time.Time

	temporary bool // Dir is to be removed
	store     *Store
	table     bool // the one of effects is made
	file      *os.File
	w         *history.Writer
	wires     []*fault.Wire
	urls      []string
	crew      *crew
	target    *fault.Target
	faults    []*fault.Fault
	strikes   []*Strikes
	round     uint64   // of storms
	begun     sync.Map // when a fault began to strike, by its name
	report    *Report
	remains   remains
}

// setUp makes everything ready and starts the workers.
func (r *run) setUp(ctx context.Context) (err error) {
	if r.Dir == "" {
		r.temporary = true
		if r.Dir, err = os.MkdirTemp("", "dibs-torture-*"); err != nil {
			return fmt.Errorf("no folder for the histories: %w", err)
		}
	}
	if r.file, err = os.Create(filepath.Join(r.Dir, "runner.jsonl")); err != nil {
		return fmt.Errorf("no file for the history: %w", err)
	}
	r.w = history.NewWriter(r.file, 0, 0)
	r.w.Now = history.Now
	if err := r.makeTable(ctx); err != nil {
		return err
	}
	r.aim()
	begin := history.Now()
	pause := r.pause()
	r.crew, err = newCrew(r.Dir, r.Workers, r.w, r.Log, func(i int) task {
		return task{
			URL: r.urls[i], Namespace: r.namespace, Run: r.id, Process: i + 1, Processes: r.Workers, Lanes: r.Lanes,
			Seed: r.Seed, TTL: r.TTL, Pause: pause, Begin: begin,
		}
	})
	if err != nil {
		return err
	}
	r.target.Workers, r.target.TTL = r.crew, r.TTL
	r.target.Began = func(f *fault.Fault) { r.begun.Store(f.Name, history.Now()) }
	r.report = &Report{}
	var absent []fault.Absent
	if r.faults, absent, err = fault.Select(r.target, r.Faults); err != nil {
		return err
	}
	for _, a := range absent {
		r.leaveOut(a.Name, a.Why)
	}
	r.separate()
	for _, f := range r.faults {
		if f.Kind == fault.Worker {
			for _, m := range r.crew.members {
				m.task.Crash = true
			}
		}
	}
	return r.crew.start(ctx)
}

// makeTable makes the table of effects, if there is a database. It closes the store again, so
// that faults concern the workers only.
func (r *run) makeTable(ctx context.Context) error {
	s, err := r.Open(ctx, r.URL)
	if err != nil {
		return err
	}
	if s.effects != nil {
		if err := s.effects.make(ctx, r.id); err != nil {
			return errors.Join(err, s.Close())
		}
		r.table = true
	}
	return s.Close()
}

// open opens the store once more, where the workers have it: that is another server when
// one has taken the place of the first.
func (r *run) open(ctx context.Context) (err error) {
	if r.store == nil {
		ctx, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		r.store, err = again(ctx, func() (*Store, error) { return r.Open(ctx, r.urls[0]) })
	}
	if err != nil {
		return fmt.Errorf("the store cannot be opened after the faults: %w", err)
	}
	return nil
}

// aim finds out what faults can strike, and by which URL each worker uses the store.
func (r *run) aim() {
	if r.target = r.Target; r.target == nil {
		r.target = &fault.Target{URL: r.URL}
	}
	var err error
	if r.wires, r.urls, err = fault.Through(r.URL, r.Workers); err != nil {
		r.Log.Info("nothing strikes the network", "why", err)
	}
	r.target.Wires = r.wires
	for len(r.urls) < r.Workers {
		r.urls = append(r.urls, r.URL)
	}
}

// separate leaves out faults that must not meet others, if others are there. A server
// whose clock goes back by an hour freezes what the dead have left for as long; and if it
// forgets its highest fence too, it has nothing to go on from.
func (r *run) separate() {
	if !slices.ContainsFunc(r.faults, func(f *fault.Fault) bool { return !f.Alone }) {
		return
	}
	r.faults = slices.DeleteFunc(r.faults, func(f *fault.Fault) bool {
		if f.Alone {
			r.leaveOut(f.Name, "it is not to be mixed with others; ask for it alone")
		}
		return f.Alone
	})
}

// leaveOut notes that a fault does not strike.
func (r *run) leaveOut(name, why string) {
	r.report.Absent = append(r.report.Absent, Absent{Name: name, Why: why, Asked: r.wanted.Named(name)})
}

// eventsEach is how many events a thing that a lane does comes to, about: claims that are
// asked again while they wait, renewals, and what is written of the section.
const eventsEach = 5

// pause is how long a lane rests between two things, so that the history gets no longer
// than it may, and the machine has something left for the faults.
func (r *run) pause() time.Duration {
	rate := min(float64(r.Events)/eventsEach/r.Duration.Seconds(), maxRate)
	return time.Duration(float64(r.Workers*r.Lanes) / rate * float64(time.Second))
}

// maxRate is how many things the lanes of all workers begin in a second, at most.
const maxRate = 800

// perform is the run, from the first strike to the verdict.
func (r *run) perform(ctx context.Context) error {
	r.began = time.Now()
	unwatch := r.watchClock()
	defer unwatch()
	r.Log.Info("under fire", "workers", r.Workers, "faults", len(r.faults), "seed", r.Seed)
	r.underFire(ctx)
	interrupted := ctx.Err() != nil
	// What follows is in order, also when somebody wants it to be over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.orderLimit())
	defer cancel()
	if err := r.crew.pacify(ctx); err != nil {
		r.crew.breaks(err.Error())
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	if err := r.thaw(ctx); err != nil {
		r.crew.breaks(err.Error())
	}
	_ = r.w.Happened(history.Event{Kind: history.Calm})
	r.Log.Info("calm")
	r.calm(ctx)
	r.crew.finish(ctx)
	r.crew.kill()
	if err := r.collect(ctx); err != nil {
		return err
	}
	unwatch()
	if err := r.file.Close(); err != nil {
		return err
	}
	events, err := history.ReadFiles(append(r.crew.files, r.file.Name())...)
	if err != nil {
		return err
	}
	r.Log.Info("checking", "events", len(events))
	checking := time.Now()
	v := judge(events, r.faults, r.remains.keys, r.URL)
	r.fill(v, len(events), time.Since(checking), interrupted)
	return nil
}

// orderLimit bounds all that comes after the faults, but the check.
func (r *run) orderLimit() time.Duration { return 2*time.Minute + 4*r.TTL }

// calm waits until every worker has had every key.
func (r *run) calm(ctx context.Context) {
	r.crew.calm.Store(true)
	r.crew.order(command{Calm: true})
	for i, m := range r.crew.members {
		p := m.process.Load()
		select {
		case <-p.swept:
		case <-p.done:
			r.crew.breaks(fmt.Sprintf("worker %d ended in the calm: %s", i+1, p.last()))
		case <-ctx.Done():
			r.crew.breaks(fmt.Sprintf("worker %d has not had every key within %v", i+1, r.orderLimit()))
			return
		}
	}
}

// underFire lets every fault strike, again and again, until the time is over; and those
// that have not bitten by then for some time more, because a run says nothing about them
// otherwise.
func (r *run) underFire(ctx context.Context) {
	for _, f := range r.faults {
		r.strikes = append(r.strikes, &Strikes{
			Name: f.Name, Kind: string(f.Kind), About: f.About, Bite: f.Bite, Forgets: f.Forgets,
		})
	}
	r.storm(ctx, r.Duration, func(*Strikes) bool { return true })
	r.storm(ctx, max(r.Duration/2, encore), func(s *Strikes) bool { return s.Bites == 0 })
}

// encore is how long faults that have not bitten go on, at least, before they are given up:
// on a busy machine workers that wait for a server to come back give them little to bite.
const encore = 30 * time.Second

// storm lets faults strike for as long as one of them wants to, and that long at most.
func (r *run) storm(ctx context.Context, d time.Duration, wants func(*Strikes) bool) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var all sync.WaitGroup
	r.round++
	n := 0
	for _, s := range r.strikes {
		if wants(s) {
			n++
		}
	}
	for i, f := range r.faults {
		if s := r.strikes[i]; wants(s) {
			random := rand.New(rand.NewPCG(r.Seed, 1<<63|r.round<<32|uint64(i)))
			between := min(float64(r.TTL)*float64(n)*strikeShare, float64(r.Duration)/4)
			all.Go(func() { r.strike(ctx, f, s, wants, between, random) })
		}
	}
	if len(r.faults) == 0 && r.round == 1 {
		<-ctx.Done() // the workers have the time all the same
	}
	all.Wait()
}

// strike lets one fault strike at random moments, that much time between them on average.
// The more faults there are, the rarer each is, so that there is time to recover.
func (r *run) strike(ctx context.Context, f *fault.Fault, s *Strikes, wants func(*Strikes) bool, between float64, random *rand.Rand) {
	for wants(s) && rest(ctx, time.Duration(between*(0.2+1.6*random.Float64()))) {
		call := history.Now()
		bites, err := f.Strike(ctx, r.target, random)
		done := history.Now()
		if began, ok := r.begun.LoadAndDelete(f.Name); ok {
			call = began.(time.Duration)
		}
		s.Strikes++
		s.Bites += bites
		if err != nil {
			s.Errors = append(s.Errors, err.Error())
			r.Log.Warn("a fault could not strike", "fault", f.Name, "error", err)
		}
		_ = r.w.Happened(history.Event{Kind: history.Fault, Name: f.Name, Times: bites, Call: call, Return: done})
	}
}

// strikeShare is how many TTLs lie between two strikes of any fault, on average.
const strikeShare = 0.5

// tearDown ends and removes what the run has made.
func (r *run) tearDown() error {
	var errs []error
	if r.crew != nil {
		r.crew.kill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	if r.table {
		err := r.open(ctx)
		if err == nil {
			err = r.store.effects.drop(ctx, r.id)
		}
		errs = append(errs, err)
	}
	if r.store != nil {
		_ = r.store.Close() // the workers' is the one that counts
	}
	for _, w := range r.wires {
		_ = w.Close()
	}
	if r.target != nil {
		r.target.Workers, r.target.Wires, r.target.Began = nil, nil, nil // all of them are gone
	}
	if r.file != nil {
		_ = r.file.Close() // closed before, if all went well
	}
	if r.temporary && r.Dir != "" && (r.report == nil || r.report.OK()) {
		errs = append(errs, os.RemoveAll(r.Dir))
	}
	return errors.Join(errs...)
}

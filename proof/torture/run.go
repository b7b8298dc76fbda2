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
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
)

// Run lets worker processes use the store while faults strike, and checks their histories; see
// Report.OK. If ctx ends, the faults end at once and the rest follows in order.
//
// It returns ErrOptions, an error of Open, or an error if a worker cannot be started.
func Run(ctx context.Context, o *Options) (*Report, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &run{Options: options, id: store.NewToken().ID(), gone: make(chan string, 1)}
	r.namespace = "torture-" + r.id
	if err := r.setUp(ctx); err != nil {
		return nil, errors.Join(err, r.tearDown())
	}
	if err := r.perform(ctx); err != nil {
		r.temporary = false // the histories are needed to find the reason
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

	temporary bool // Dir is removed at the end
	store     *Store
	table     bool // it is made
	file      *os.File
	w         *history.Writer
	wires     []*wire.Wire
	urls      []string
	workers   *workers
	target    *fault.Target
	locks     bool // the workers use a Locker
	faults    []*fault.Fault
	strikes   []*Strikes
	round     uint64   // of storms
	begun     sync.Map // when a fault began to strike, by its name
	stage     atomic.Pointer[stage]
	hit       atomic.Int64 // how many faults had an effect
	gone      chan string  // a fault that did not come back
	report    *Report
	remains   remains
}

// setUp prepares everything and starts the workers.
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
	r.workers, err = newWorkers(r.Dir, r.Workers, r.w, r.Log, func(i int) task {
		return task{
			URL: r.urls[i], Namespace: r.namespace, Run: r.id, Process: i + 1, Processes: r.Workers, Lanes: r.Lanes,
			Seed: r.Seed, TTL: r.TTL, Pause: pause, Begin: begin,
		}
	})
	if err != nil {
		return err
	}
	r.target.Workers, r.target.TTL = r.workers, r.TTL
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
			for _, m := range r.workers.supervisors {
				m.task.Crash = true
			}
		}
	}
	return r.workers.start(ctx)
}

// makeTable makes the table of effects, if there is a database. It closes the store again, so
// that faults concern only the workers.
func (r *run) makeTable(ctx context.Context) error {
	s, err := r.Open(ctx, r.URL)
	if err != nil {
		return err
	}
	r.locks = s.Locker != nil
	if s.effects != nil {
		if err := s.effects.make(ctx, r.id); err != nil {
			return errors.Join(err, s.Close())
		}
		r.table = true
	}
	return s.Close()
}

// open opens the store as the first worker does, because a failover may have put another server
// in the place of the first.
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

// aim puts a wire between each worker and the server, where that is possible.
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

// separate leaves out the faults that must be alone, if there are others. A server whose clock
// goes back by an hour cannot raise its fences if it also forgets the highest one.
func (r *run) separate() {
	if !slices.ContainsFunc(r.faults, func(f *fault.Fault) bool { return !f.Alone }) {
		return
	}
	r.faults = slices.DeleteFunc(r.faults, func(f *fault.Fault) bool {
		if f.Alone {
			r.leaveOut(f.Name, "it must be alone; name only it")
		}
		return f.Alone
	})
}

// leaveOut notes that a fault does not strike.
func (r *run) leaveOut(name, why string) {
	r.report.Absent = append(r.report.Absent, Absent{Name: name, Why: why, Asked: r.wanted.Named(name)})
}

// eventsEach is about how many events an action of a lane causes.
const eventsEach = 5

// pause returns how long a lane rests between two actions, so that the history does not become
// longer than Options.Events.
func (r *run) pause() time.Duration {
	rate := min(float64(r.Events)/eventsEach/r.Duration.Seconds(), maxRate)
	return time.Duration(float64(r.Workers*r.Lanes) / rate * float64(time.Second))
}

// maxRate bounds how many actions all lanes begin in a second.
const maxRate = 800

// perform is the run from the first strike to the check.
func (r *run) perform(ctx context.Context) error {
	r.began = time.Now()
	unwatch := r.watchClock()
	defer unwatch()
	untell := sync.OnceFunc(r.tell())
	defer untell()
	r.Log.Info("faults strike", "workers", r.Workers, "faults", len(r.faults), "seed", r.Seed)
	r.faultsStrike(ctx)
	if len(r.gone) > 0 {
		return fmt.Errorf("the fault %s ended its goroutine, as a test's Fatalf does", <-r.gone)
	}
	interrupted := ctx.Err() != nil
	// An interrupted run ends in order too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.orderLimit())
	defer cancel()
	if err := r.workers.stopCrashing(ctx); err != nil {
		r.workers.trouble(err.Error())
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	if err := r.releaseStale(ctx); err != nil {
		r.workers.trouble(err.Error())
	}
	_ = r.w.Happened(history.Event{Kind: history.FaultsEnd})
	r.begin("recovery", 0)
	r.Log.Info("recovery: every key must be free soon")
	r.recovery(ctx)
	r.workers.finish(ctx)
	r.workers.kill()
	if err := r.collect(ctx); err != nil {
		return err
	}
	unwatch()
	if err := r.file.Close(); err != nil {
		return err
	}
	events, err := history.ReadFiles(append(r.workers.files, r.file.Name())...)
	if err != nil {
		return err
	}
	r.begin("checking", 0)
	r.Log.Info("checking", "events", len(events))
	checking := time.Now()
	var v *verdict
	if r.store.Locker != nil {
		r.report.Locks = check.Sections(events)
		v = judgeLocks(r.report.Locks)
	} else {
		v = judge(events, r.faults, r.remains.keys, r.URL, r.TTL)
	}
	r.fill(v, len(events), time.Since(checking), interrupted)
	return nil
}

// orderLimit bounds what follows the faults, without the check.
func (r *run) orderLimit() time.Duration { return 2*time.Minute + 4*r.TTL }

// recovery waits until every worker has acquired every key again.
func (r *run) recovery(ctx context.Context) {
	r.workers.recovery.Store(true)
	r.workers.order(command{Recovery: true})
	for i, m := range r.workers.supervisors {
		p := m.process.Load()
		select {
		case <-p.swept:
		case <-p.done:
			r.workers.trouble(fmt.Sprintf("worker %d ended in the recovery: %s", i+1, p.last()))
		case <-ctx.Done():
			r.workers.trouble(fmt.Sprintf("worker %d has not acquired every key within %v", i+1, r.orderLimit()))
			return
		}
	}
}

// faultsStrike lets every fault strike until the duration is over. A fault that has not hit by
// then gets more time, because otherwise the run says nothing about it. Not so with a Locker,
// because some of them cannot show that a lock is lost.
func (r *run) faultsStrike(ctx context.Context) {
	for _, f := range r.faults {
		r.strikes = append(r.strikes, &Strikes{
			Name: f.Name, Kind: string(f.Kind), About: f.About, Evidence: f.Evidence, Forgets: f.Forgets,
		})
	}
	r.begin("faults strike", r.Duration)
	r.storm(ctx, r.Duration, func(*Strikes) bool { return true })
	if !r.locks && len(r.gone) == 0 {
		r.begin("more time for faults that have not hit", max(r.Duration/2, encore))
		r.storm(ctx, max(r.Duration/2, encore), func(s *Strikes) bool { return s.Hits == 0 })
	}
}

// encore is the least time that a fault which has not hit gets, because workers that wait for a
// server give it little to hit.
const encore = 30 * time.Second

// storm lets those faults strike that are wanted, for at most d.
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
			all.Go(func() {
				back := false
				defer func() {
					if !back { // what it broke stays broken, so nothing more can be learned
						select {
						case r.gone <- f.Name:
						default:
						}
						cancel()
					}
				}()
				r.strike(ctx, f, s, wants, between, random)
				back = true
			})
		}
	}
	if len(r.faults) == 0 && r.round == 1 {
		<-ctx.Done()
	}
	all.Wait()
}

// strike lets one fault strike at random moments, with that time between two strikes on average.
func (r *run) strike(ctx context.Context, f *fault.Fault, s *Strikes, wants func(*Strikes) bool, between float64, random *rand.Rand) {
	for wants(s) && backoff.Sleep(ctx, time.Duration(between*(0.2+1.6*random.Float64()))) == nil {
		call := history.Now()
		hits, err := f.Strike(ctx, r.target, random)
		done := history.Now()
		if began, ok := r.begun.LoadAndDelete(f.Name); ok {
			call = began.(time.Duration)
		}
		s.Strikes++
		if s.Hits == 0 && hits > 0 {
			r.hit.Add(1)
		}
		s.Hits += hits
		if err != nil {
			s.Errors = append(s.Errors, err.Error())
			r.Log.Warn("a fault could not strike", "fault", f.Name, "error", err)
		}
		_ = r.w.Happened(history.Event{Kind: history.Fault, Name: f.Name, Times: hits, Call: call, Return: done})
	}
}

// strikeShare is how many TTLs are between two strikes of any fault, on average.
const strikeShare = 0.5

// tearDown ends and removes everything that the run has made.
func (r *run) tearDown() error {
	var errs []error
	if r.workers != nil {
		r.workers.kill()
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
		_ = r.store.Close()
	}
	for _, w := range r.wires {
		_ = w.Close()
	}
	if r.target != nil {
		r.target.Workers, r.target.Wires, r.target.Began = nil, nil, nil // they have ended
	}
	if r.file != nil {
		_ = r.file.Close()
	}
	if r.temporary && r.Dir != "" && (r.report == nil || r.report.OK()) {
		errs = append(errs, os.RemoveAll(r.Dir))
	}
	return errors.Join(errs...)
}

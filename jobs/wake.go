package jobs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// ErrGone is what Job.Wake returns when the job is no more: it was cancelled or
// deleted in its queue. Its place is given up.
var ErrGone = errors.New("jobs: the job is gone from its queue")

// errUnnoted is why a job that was put off a moment ago cannot be made runnable.
var errUnnoted = errors.New("jobs: the queue has not noted yet that the job was put off")

const (
	// wakePatience is how long the queue is asked to make a job runnable.
	wakePatience = 10 * time.Second
	// wakeSoon is how soon it is asked again, at the latest, until it has noted that the
	// job was put off; wakeAgain, after an error.
	wakeSoon  = 20 * time.Millisecond
	wakeAgain = 100 * time.Millisecond
	// closePatience is how long Close asks for all of those that are left.
	closePatience = 5 * time.Second
	// closeEach is how long it asks for one of them, before those behind it; then it asks
	// again.
	closeEach = time.Second
	// closeTells is how much of it is kept for saying what is left.
	closeTells = 100 * time.Millisecond
	// closeAtOnce is for how many keys at once it does.
	closeAtOnce = 16
)

// call makes a job of a line runnable.
func (l *lines) call(w *away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.gone {
		return
	}
	w.woken, w.coming = time.Now(), true
	l.waiting--
	w.room.coming++
	l.called = append(l.called, w)
	time.AfterFunc(l.mutex.comes(), func() {
		l.mu.Lock()
		l.came(w)
		l.mu.Unlock()
		l.seat(w.room)
	})
	l.wakers.Go(func() {
		if over, err := l.wake(context.Background(), w, wakePatience); !over {
			l.mutex.options.Logger.Warn("dibs: the queue did not make a job runnable whose turn is near; it comes back later",
				"kind", w.job.Kind, "job", w.job.ID, "error", err)
		}
	})
}

// wake asks the queue to make a job runnable, until it has noted that the job was put
// off, and also when it cannot be asked for a moment: the job's key lies idle until then.
// It reports whether there is nothing more to ask for, and why it was not done in that time.
func (l *lines) wake(ctx context.Context, w *away, patience time.Duration) (over bool, why error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := 2 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, wakeSoon) {
		if l.isBack(w) {
			return true, nil
		}
		l.asked(w)
		switch done, err := w.job.Wake(ctx); {
		case errors.Is(err, ErrGone):
			w.giveUp(ctx, w.place)
			return true, nil
		case err == nil && done:
			return true, nil
		case err == nil:
			why = errUnnoted
		case ctx.Err() == nil || why == nil:
			why, pause = err, wakeAgain
		}
		l.mutex.pause(ctx, pause)
	}
	return l.isBack(w), why
}

// asked notes that the queue is asked now: only from then on the job is on its way.
func (l *lines) asked(w *away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.woken.IsZero() {
		w.woken = time.Now()
	}
}

func (l *lines) isBack(w *away) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.gone
}

// close makes all jobs runnable that were put off, those of a key in their order, so
// that another process looks after them. Nobody watches any more.
func (l *lines) close() {
	l.mu.Lock()
	l.mu.Unlock() //nolint:staticcheck // whoever began a line before it saw the end has begun it
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	asking, end := context.WithTimeout(ctx, closePatience-closeTells)
	defer end()
	over := make(chan struct{})
	go func() {
		l.workers.Wait() // no line is begun any more, and nobody is called
		l.wakeAll(asking)
		l.wakers.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// wakeAll makes all of them runnable, and asks again for those for which it was in vain when
// it has asked for all, until ctx ends.
func (l *lines) wakeAll(ctx context.Context) {
	l.mu.Lock()
	var all [][]*away
	for key, of := range l.byKey {
		all = append(all, slices.DeleteFunc(of.away, (*away).over))
		delete(l.byKey, key)
	}
	l.mu.Unlock()
	var why error
	for {
		left, err := l.wakeEach(ctx, all)
		if err != nil {
			why = err
		}
		switch {
		case left == 0:
			return
		case ctx.Err() != nil:
			l.mutex.options.Logger.Warn("dibs: the Mutex was closed, and the queue did not make all jobs runnable that were put off; they come back later",
				"left", left, "error", why)
			return
		}
	}
}

// wakeEach asks once for each, those of a key in their order, and leaves out those that are
// runnable then. It returns how many are left, and why one of them was not.
func (l *lines) wakeEach(ctx context.Context, all [][]*away) (left int, why error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	room := make(chan struct{}, closeAtOnce)
	for i, ofKey := range all {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			ofKey = slices.DeleteFunc(ofKey, func(w *away) bool {
				over, err := l.wake(ctx, w, closeEach)
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					why = err
				}
				return over
			})
			mu.Lock()
			defer mu.Unlock()
			all[i] = ofKey
			left += len(ofKey)
		})
	}
	wg.Wait()
	return left, why
}

// pause waits.
func (m *Mutex) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// undo ends the lease of a job that did not run, as if it had not been granted: the
// place stands again.
func (a *attempt) undo(ctx context.Context, lease *dibs.Lease) {
	_ = a.end(ctx, lease.Undo)
}

// end ends a lease by a call that does it, and goes on in the background while the store
// does not answer: a lease that nobody ends is renewed for ever.
func (a *attempt) end(ctx context.Context, by func(context.Context) error) error {
	m := a.mutex
	try := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
		defer cancel()
		return by(ctx)
	}
	err := try()
	if unended(err) {
		go func() {
			for again := err; unended(again); again = try() {
				m.pause(context.Background(), time.Second)
			}
		}()
	}
	return err
}

// unended reports whether a lease stands that was to be ended.
func unended(err error) bool { return err != nil && !errors.Is(err, dibs.ErrLost) }

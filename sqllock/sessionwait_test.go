package sqllock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs"
)

// A thousand waits that are given up leave nothing behind.
func TestSessionCancelledWaits(t *testing.T) {
	t.Parallel()
	name, key := own(), ownKey()
	var all sync.WaitGroup
	other := newAdvisory(t, nil)
	l, err := other.Lock(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := openSession(t, name, nil)
	for i := range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		for j := range 100 {
			all.Go(func() {
				key := key
				if j%2 == 1 {
					key = NameKey(name, fmt.Sprint(j))
				}
				l, err := s.Lock(ctx, key, nil)
				switch {
				case key != NameKey(name, fmt.Sprint(j)) && err == nil:
					t.Error("it got what another one holds")
				case err == nil:
					if err := l.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		eventually(t, "one waits in the server", func() bool { return advisoryLocks(t, key) >= 2 || i > 0 })
		cancel()
		all.Wait()
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	eventually(t, "nothing is left", func() bool {
		locks, _ := sessionLocks(t, name)
		return locks == 0 && advisoryLocks(t, key) == 0
	})
}

// However many wait, the connections are bounded, and all of them come.
func TestSessionManyWaiters(t *testing.T) {
	t.Parallel()
	name := own()
	s := openSession(t, name, &SessionOptions{Waiting: 2})
	other := openSession(t, own(), nil)
	var held []*Lock
	var all sync.WaitGroup
	var came atomic.Int64
	for i := range 20 {
		key := NameKey(name, fmt.Sprint(i))
		l, err := other.Lock(t.Context(), key, nil)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
		all.Go(func() {
			err := s.Do(t.Context(), key, nil, func(context.Context) error {
				came.Add(1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "two wait in the server", func() bool {
		locks, _ := sessionLocks(t, name)
		return locks == 2
	})
	if _, connections := sessionLocks(t, name); connections != 3 || came.Load() != 0 {
		t.Errorf("%d connections, and %d came", connections, came.Load())
	}
	// Others get theirs meanwhile.
	if err := s.Do(t.Context(), ownKey(), nil, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	for _, l := range held {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
	if locks, connections := sessionLocks(t, name); came.Load() != 20 || locks != 0 || connections != 3 {
		t.Errorf("%d came; %d locks on %d connections", came.Load(), locks, connections)
	}
}

// A lock that was waited for is in another session, which can end as well.
func TestSessionWaiterEnds(t *testing.T) {
	t.Parallel()
	name, key := own(), ownKey()
	s, a := openSession(t, name, &SessionOptions{Waiting: 1}), newAdvisory(t, nil)
	first, err := a.Lock(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *Lock)
	go func() {
		l, err := s.Lock(t.Context(), key, nil)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	eventually(t, "it waits", func() bool { return advisoryLocks(t, key) == 2 })
	stays, err := s.Lock(t.Context(), ownKey(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Unlock(); err != nil {
		t.Error(err)
	}
	l := <-got
	endSession(t, key)
	wantCause(t, l, dibs.ErrLost)
	if err := l.Unlock(); !errors.Is(err, dibs.ErrLost) {
		t.Error(err)
	}
	if err := stays.Unlock(); err != nil {
		t.Errorf("one in the other session: %v", err)
	}
	// One that ends while somebody waits in it is no grant.
	first, err = a.Lock(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := s.Lock(t.Context(), key, nil)
		if !errors.Is(err, ErrServer) {
			t.Errorf("its session ended: %v", err)
		}
		got <- nil
	}()
	eventually(t, "its session ends as it waits", func() bool {
		ended := postgres().Query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '" + name + "' AND wait_event = 'advisory'")
		return len(ended) == 1
	})
	<-got
	if err := first.Unlock(); err != nil {
		t.Error(err)
	}
}

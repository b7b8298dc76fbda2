package sqllock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/servertest"
)

// openSession opens a session on the shared server, which is told apart by its name
// there; it ends with the test.
func openSession(t testing.TB, name string, o *SessionOptions) *Session {
	t.Helper()
	return openSessionAt(t, withParameter(postgres().URL(), "application_name", name), o)
}

func openSessionAt(t testing.TB, url string, o *SessionOptions) *Session {
	t.Helper()
	s, err := OpenSession(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// sessionLocks counts the advisory locks, had or waited for, of the connections of that
// name; and the connections.
func sessionLocks(t testing.TB, name string) (locks, connections int) {
	t.Helper()
	row := postgres().Query("SELECT COUNT(l.pid), COUNT(DISTINCT a.pid) FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' WHERE application_name = '" + name + "'")[0]
	locks, _ = strconv.Atoi(row[0])
	connections, _ = strconv.Atoi(row[1])
	return locks, connections
}

// terminate ends all connections of that name.
func terminate(t testing.TB, name string) {
	t.Helper()
	postgres().Query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '" + name + "'")
}

// wantCause fails the test unless the lock's context ends, with that cause.
func wantCause(t testing.TB, l *Lock, want error) {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(failpoint.Limit):
		t.Fatalf("the context of %v did not end within %v", l, failpoint.Limit)
	}
	if cause := context.Cause(l.Context()); !errors.Is(cause, want) {
		t.Fatalf("cause: %v; want %v", cause, want)
	}
}

func TestSessionExcludes(t *testing.T) {
	t.Parallel()
	name := own()
	one, two := openSession(t, name, nil), openSession(t, name, nil)
	beside := newAdvisory(t, nil)
	for what, key := range map[string]AdvisoryKey{
		"a number": IntKey(1<<62 + owned.Add(1)), "a negative one": IntKey(-1<<62 - owned.Add(1)), "a name": ownKey(),
		"a pair": PairKey(-3, int32(-owned.Add(1))), "another": PairKey(3, int32(owned.Add(1))),
	} {
		l, err := one.Lock(t.Context(), key, nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, o := range []*LockOptions{nil, {Shared: true}} {
			for _, try := range []func(context.Context, AdvisoryKey, *LockOptions) (*Lock, error){one.TryLock, two.TryLock, beside.TryLock} {
				if _, err := try(t.Context(), key, o); !errors.Is(err, dibs.ErrHeld) || errors.Is(err, ErrServer) {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
		for _, s := range []*Session{one, two} {
			start := time.Now()
			_, err := s.Lock(t.Context(), key, &LockOptions{Wait: 60 * time.Millisecond})
			if took := time.Since(start); !errors.Is(err, dibs.ErrHeld) || took < 60*time.Millisecond {
				t.Errorf("%s: %v after %v", what, err, took)
			}
			if held, err := s.Held(t.Context(), key); !held || err != nil {
				t.Errorf("%s: Held: %v, %v", what, held, err)
			}
		}
		for range 2 {
			if err := l.Unlock(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if held, err := two.Held(t.Context(), key); held || err != nil {
			t.Errorf("%s: Held: %v, %v", what, held, err)
		}
		// Shared by several in one process and in others, and given up by the last.
		share := &LockOptions{Shared: true}
		err = one.Do(t.Context(), key, share, func(context.Context) error {
			return one.Do(t.Context(), key, share, func(context.Context) error {
				return two.TryDo(t.Context(), key, share, func(context.Context) error {
					return beside.TryDo(t.Context(), key, nil, func(context.Context) error { return nil })
				})
			})
		})
		if !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("%s, shared: %v", what, err)
		}
		if err := beside.TryDo(t.Context(), key, nil, func(context.Context) error { return nil }); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// In one process they come in their order, and one at a time.
func TestSessionOrder(t *testing.T) {
	t.Parallel()
	s, key := openSession(t, own(), nil), ownKey()
	l, err := s.Lock(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	order := make(chan int, 10)
	for i := range 10 {
		all.Go(func() {
			err := s.Do(t.Context(), key, nil, func(context.Context) error {
				order <- i
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		eventually(t, "it stands in line", func() bool {
			s.seats.mu.Lock()
			defer s.seats.mu.Unlock()
			return len(s.seats.at[key].behind) == i+1
		})
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	all.Wait()
	for want := range 10 {
		if got := <-order; got != want {
			t.Errorf("%d came as number %d", got, want)
		}
	}
}

// Many who want the same few keys, alone or shared, in several processes.
func TestSessionStress(t *testing.T) {
	t.Parallel()
	name := own()
	keys := []AdvisoryKey{ownKey(), ownKey(), PairKey(9, int32(owned.Add(1)))}
	var alone, together [3]atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		s := openSession(t, name, &SessionOptions{Waiting: 2})
		for g := range 8 {
			all.Go(func() {
				for i := range 12 {
					k, shared := (g+i)%3, i%4 == 0
					err := s.Do(t.Context(), keys[k], &LockOptions{Shared: shared}, func(context.Context) error {
						mine, others := &alone[k], &together[k]
						if shared {
							mine, others = others, mine
						}
						if n := mine.Add(1); n > 1 && !shared || others.Load() > 0 {
							t.Errorf("%d like it and %d others are inside", n, others.Load())
						}
						runtime.Gosched()
						mine.Add(-1)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	if locks, connections := sessionLocks(t, name); locks != 0 || connections > 9 {
		t.Errorf("%d locks are left on %d connections", locks, connections)
	}
}

// 2,000 keys on one connection; when its session ends, all contexts do.
func TestSessionManyKeys(t *testing.T) {
	t.Parallel()
	const n = 2000
	name := own()
	s := openSession(t, name, nil)
	locks := make([]*Lock, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var err error
			if locks[i], err = s.Lock(t.Context(), NameKey(name, fmt.Sprint(i)), nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	if got, connections := sessionLocks(t, name); got != n || connections != 1 {
		t.Fatalf("%d locks on %d connections", got, connections)
	}
	terminate(t, name)
	for _, l := range locks {
		wantCause(t, l, dibs.ErrLost)
	}
	for i, l := range locks {
		if err := l.Unlock(); !errors.Is(err, dibs.ErrLost) {
			t.Fatal(err)
		}
		if i%100 == 0 { // and they are to be had again
			if err := s.Do(t.Context(), NameKey(name, fmt.Sprint(i)), nil, func(ctx context.Context) error { return ctx.Err() }); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "no locks, and one connection", func() bool {
		got, connections := sessionLocks(t, name)
		return got == 0 && connections == 1
	})
}

// The lock is given up on every way out.
func TestSessionWaysOut(t *testing.T) {
	t.Parallel()
	name := own()
	s := openSession(t, name, nil)
	for way, out := range map[string]func() error{
		"return": func() error { return nil },
		"error":  func() error { return errors.New("boom") },
		"panic":  func() error { panic("boom") },
		"Goexit": func() error { runtime.Goexit(); return nil },
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			_ = s.Do(t.Context(), ownKey(), nil, func(context.Context) error {
				if n, _ := sessionLocks(t, name); n != 1 {
					t.Errorf("%s: %d locks", way, n)
				}
				return out()
			})
		}()
		<-done
		if n, _ := sessionLocks(t, name); n != 0 {
			t.Errorf("%s: %d locks are left", way, n)
		}
	}
}

// A network that is cut without a word ends the locks.
func TestSessionSilence(t *testing.T) {
	t.Parallel()
	wire := servertest.NewWire(t, postgres().Addr())
	s := openSessionAt(t, postgres().URLAt(wire.Addr()), &SessionOptions{Heartbeat: 100 * time.Millisecond})
	l, err := s.Lock(t.Context(), ownKey(), nil)
	if err != nil {
		t.Fatal(err)
	}
	wire.Hang()
	wantCause(t, l, dibs.ErrLost)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(ctx, ownKey(), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is cut: %v", err)
	}
	wire.Mend()
	if err := s.Do(t.Context(), ownKey(), nil, func(context.Context) error { return nil }); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func TestSessionClose(t *testing.T) {
	t.Parallel()
	name, key := own(), ownKey()
	s := openSession(t, name, nil)
	l, err := s.Lock(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := s.Lock(t.Context(), key, nil)
		waiting <- err
	}()
	eventually(t, "it stands in line", func() bool {
		s.seats.mu.Lock()
		defer s.seats.mu.Unlock()
		return len(s.seats.at[key].behind) == 1
	})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	wantCause(t, l, dibs.ErrClosed)
	if err := <-waiting; !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("who waited: %v", err)
	}
	if err := l.Unlock(); !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("Unlock: %v", err)
	}
	if _, err := s.TryLock(t.Context(), key, nil); !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("TryLock: %v", err)
	}
	eventually(t, "the connections are gone", func() bool {
		_, connections := sessionLocks(t, name)
		return connections == 0
	})
}

func TestSessionRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		url     string
		options *SessionOptions
		want    error
	}{
		"nobody":         {"postgres://nobody@127.0.0.1:1/none", nil, ErrServer},
		"not a URL":      {"postgres://%", nil, ErrServer},
		"no connections": {postgres().URL(), &SessionOptions{Waiting: -1}, nil},
		"a heartbeat":    {postgres().URL(), &SessionOptions{Heartbeat: time.Nanosecond}, nil},
	} {
		s, err := OpenSession(t.Context(), test.url, test.options)
		if err == nil {
			s.Close()
			t.Errorf("%s was accepted", name)
		}
		if test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

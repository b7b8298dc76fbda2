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

// wantCause fails the test unless the lock's context ends soon, with that cause.
func wantCause(t testing.TB, l *Lock, within time.Duration, want error) {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(within):
		t.Fatalf("the context of %v did not end within %v", l, within)
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
			if took := time.Since(start); !errors.Is(err, dibs.ErrHeld) || took < 60*time.Millisecond || took > 5*time.Second {
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
		eventually(t, 10*time.Second, "it stands in line", func() bool {
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
				for i := range 40 {
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
	start := time.Now()
	for _, l := range locks {
		wantCause(t, l, time.Until(start.Add(4*time.Second)), dibs.ErrLost)
	}
	t.Logf("%d contexts had ended %v after the server's answer", n, time.Since(start))
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
	eventually(t, 10*time.Second, "no locks, and one connection", func() bool {
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

// A network that is cut without a word ends the locks in a bounded time.
func TestSessionSilence(t *testing.T) {
	t.Parallel()
	wire := servertest.NewWire(t, postgres().Addr())
	s := openSessionAt(t, postgres().URLAt(wire.Addr()), &SessionOptions{Heartbeat: 100 * time.Millisecond})
	l, err := s.Lock(t.Context(), ownKey(), nil)
	if err != nil {
		t.Fatal(err)
	}
	quiet := time.NewTimer(500 * time.Millisecond)
	select {
	case <-l.Context().Done():
		t.Fatalf("it ended while nothing was wrong: %v", context.Cause(l.Context()))
	case <-quiet.C:
	}
	wire.Hang()
	start := time.Now()
	wantCause(t, l, 100*time.Millisecond+answerLimit+4*time.Second, dibs.ErrLost)
	t.Logf("noticed after %v", time.Since(start))
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

// A server without memory for more locks refuses some, and keeps the others.
func TestSessionServerFull(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{
		NoSync: true, MaxConnections: 20, Settings: []string{"max_locks_per_transaction = 10"},
	})
	s := openSessionAt(t, server.URL(), nil)
	// The server has no memory for a connection later.
	look, err := openDB(t, "pgx", server.URL()).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	count := func() (n int) {
		t.Helper()
		if err := look.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d at first", n)
	}
	const n = 5000
	locks, errs := make([]*Lock, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { locks[i], errs[i] = s.TryLock(t.Context(), IntKey(int64(i)), nil) })
	}
	all.Wait()
	got := 0
	for i, l := range locks {
		switch {
		case l != nil:
			got++
		case !errors.Is(errs[i], ErrServer) || sqlState(errs[i]) != "53200":
			t.Fatal(errs[i])
		}
	}
	if got == 0 || got == n || got != count() {
		t.Errorf("%d think that they have one, the server says %d", got, count())
	}
	for _, l := range locks {
		if l != nil {
			if err := l.Unlock(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := count(); n != 0 {
		t.Errorf("%d are left", n)
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
	eventually(t, 10*time.Second, "it stands in line", func() bool {
		s.seats.mu.Lock()
		defer s.seats.mu.Unlock()
		return len(s.seats.at[key].behind) == 1
	})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	wantCause(t, l, 10*time.Second, dibs.ErrClosed)
	if err := <-waiting; !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("who waited: %v", err)
	}
	if err := l.Unlock(); !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("Unlock: %v", err)
	}
	if _, err := s.TryLock(t.Context(), key, nil); !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("TryLock: %v", err)
	}
	eventually(t, 10*time.Second, "the connections are gone", func() bool {
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
		"a pooler":       {pooler().URL(), nil, ErrPooler},
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

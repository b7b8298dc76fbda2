package sqllock

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// A caller that waits for several locks blocks only those that it has. Also in one process,
// two callers that keep the order do not wait for each other.
func TestLockAllKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	low, high := IntKey(owned.Add(1)), IntKey(1<<40+owned.Add(1))
	first, err := a.Lock(t.Context(), low, nil)
	testkit.Must(t, err)
	got := make(chan error, 1)
	go func() {
		both, err := a.LockAll(t.Context(), []AdvisoryKey{high, low}, nil)
		if err == nil {
			err = both.Unlock()
		}
		got <- err
	}()
	testkit.Eventually(t, "it waits", func() bool { return advisoryLocks(t, low) == 2 })
	err = a.Do(t.Context(), high, &LockOptions{Wait: testkit.Limit}, func(context.Context) error { return nil })
	if err != nil {
		t.Errorf("the second of two that are taken in order: %v", err)
	}
	testkit.Check(t, first.Unlock())
	testkit.Check(t, <-got)
}

// The holder of a lock whose session does not answer any more learns that before that
// is ended, and another session may have the lock.
func TestLostBeforeSessionEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l *Lock
		var ended atomic.Bool
		server := &fakeServer{
			query: func(sql string, _ []driver.NamedValue) ([]driver.Value, error) {
				if strings.Contains(sql, "IS_USED_LOCK") {
					return nil, errors.New("no answer")
				}
				return []driver.Value{int64(1), int64(7)}, nil
			},
			closed: func() { ended.Store(l.Context().Err() != nil) },
		}
		db := server.open(t)
		p := sessions[string]{db: db, functions: &namedFunctions{db: db}, heartbeat: time.Second}
		var err error
		if l, err = p.lock(t.Context(), []string{"a"}, request{since: time.Now()}); err != nil {
			t.Fatal(err)
		}
		<-l.Context().Done()
		synctest.Wait()
		if !ended.Load() {
			t.Error("the session ended before the lock's context")
		}
		if err := l.Unlock(); !errors.Is(err, dibs.ErrLost) {
			t.Error(err)
		}
	})
}

// A wait that is granted while its session is being ended is none: the end may come
// when the session is a foreign one.
func TestNamedGrantedWhileAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		killing, kill := make(chan struct{}), make(chan struct{})
		var closed atomic.Int64
		server := &fakeServer{
			query: func(sql string, _ []driver.NamedValue) ([]driver.Value, error) {
				switch {
				case strings.Contains(sql, "CONNECTION_ID"):
					return []driver.Value{int64(0), int64(7)}, nil
				case strings.Contains(sql, "GET_LOCK"):
					cancel()
					<-killing
				}
				return []driver.Value{int64(1)}, nil
			},
			exec: func(sql string) error {
				if sql != "KILL 7" {
					t.Error(sql)
				}
				close(killing)
				<-kill
				return nil
			},
			closed: func() { closed.Add(1) },
		}
		db := server.open(t)
		p := sessions[string]{db: db, functions: &namedFunctions{db: db, maria: true}, heartbeat: time.Second}
		l, err := p.lock(ctx, []string{"a"}, request{since: time.Now()})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if err == nil {
			_ = l.Unlock()
		}
		if closed.Load() != 1 {
			t.Error("the session went back to the pool, and is about to be killed")
		}
		close(kill)
	})
}

// A session whose lock could not be released is ended: another caller of the pool would have that
// lock, too.
func TestUnreleasedSessionEnds(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(*testing.T, *sessions[string]) error{
		"a release": func(t *testing.T, p *sessions[string]) error {
			l, err := p.lock(t.Context(), []string{"a"}, request{since: time.Now()})
			if err != nil {
				return err
			}
			return l.Unlock()
		},
		"a second lock that is held": func(t *testing.T, p *sessions[string]) error {
			_, err := p.lock(t.Context(), []string{"a", "held"}, request{try: true, since: time.Now()})
			return err
		},
		"a second lock that does not come in time": func(t *testing.T, p *sessions[string]) error {
			testkit.Must(t, p.queues.enter(t.Context(), "held"))
			_, err := p.lock(t.Context(), []string{"a", "held"}, request{wait: time.Second, since: time.Now()})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var released, closed atomic.Int64
				server := &fakeServer{
					query: func(sql string, _ []driver.NamedValue) ([]driver.Value, error) {
						switch {
						case strings.Contains(sql, "RELEASE_LOCK"):
							released.Add(1)
							return nil, errors.New("no answer")
						case strings.Contains(sql, "'held'"):
							return []driver.Value{int64(0), int64(7)}, nil
						}
						return []driver.Value{int64(1), int64(7)}, nil
					},
					closed: func() { closed.Add(1) },
				}
				db := server.open(t)
				p := &sessions[string]{db: db, functions: &namedFunctions{db: db}, heartbeat: time.Hour}
				if err := ends(t, p); err == nil {
					t.Error("there is no error")
				}
				if released.Load() != 1 || closed.Load() != 1 {
					t.Errorf("%d locks were released, %d sessions ended; want 1 and 1", released.Load(), closed.Load())
				}
			})
		})
	}
}

// Callers behind one that fails get their turn, whatever it fails of.
func TestFailedCallerLeavesTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failing := ""
		server := &fakeServer{query: func(sql string, _ []driver.NamedValue) ([]driver.Value, error) {
			if failing != "" && strings.Contains(sql, failing) {
				return nil, errors.New("no answer")
			}
			if strings.Contains(sql, "RELEASE_LOCK") {
				return []driver.Value{int64(1)}, nil
			}
			return []driver.Value{int64(1), int64(7)}, nil
		}}
		db := server.open(t)
		p := &sessions[string]{db: db, functions: &namedFunctions{db: db}, heartbeat: time.Hour}
		lock := func(wait time.Duration) error {
			l, err := p.lock(t.Context(), []string{"a"}, request{wait: wait, since: time.Now()})
			if err == nil {
				err = l.Unlock()
			}
			return err
		}
		failing = "GET_LOCK"
		if lock(time.Hour) == nil {
			t.Error("there is no error")
		}
		failing = ""
		testkit.Check(t, lock(time.Hour))

		db.SetMaxOpenConns(1)
		conn, err := db.Conn(t.Context())
		testkit.Must(t, err)
		if lock(time.Second) == nil {
			t.Error("without a connection there is no error")
		}
		testkit.Check(t, conn.Close())
		testkit.Check(t, lock(time.Hour))
		if n := len(p.queues.at); n != 0 {
			t.Errorf("%d queues are left", n)
		}
	})
}

// Callers of one key are served in order; a caller that gives up is passed over, also in
// the moment in which its turn comes.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns localQueues[string]
		testkit.Must(t, turns.enter(t.Context(), "a"))
		testkit.Must(t, turns.enter(t.Context(), "b"))
		came := make(chan int, 5)
		enough := errors.New("enough")
		stops := make([]context.CancelCauseFunc, 5)
		for i := range 5 {
			var ctx context.Context
			ctx, stops[i] = context.WithCancelCause(t.Context())
			go func() {
				if err := turns.enter(ctx, "a"); err != nil {
					if err != enough {
						t.Errorf("%d: %v", i, err)
					}
					i = -i
				}
				came <- i
			}()
			synctest.Wait()
		}
		stops[1](enough)
		synctest.Wait()
		turns.leave("a") // 0 comes
		synctest.Wait()
		turns.leave("a") // 2 comes, and gives up at the same time
		stops[2](enough)
		synctest.Wait()
		got := fmt.Sprint(<-came, <-came, <-came)
		if got == "-1 0 2" {
			turns.leave("a")
			synctest.Wait()
		} else if got != "-1 0 -2" {
			t.Errorf("they came in the order %v", got)
		}
		turns.leave("a")
		if got := fmt.Sprint(<-came, <-came); got != "3 4" {
			t.Errorf("then came %v", got)
		}
		turns.leave("a")
		turns.leave("b")
		if n := len(turns.at); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// A caller that gives up in the moment in which its turn comes passes it on, whichever it notices
// first.
func TestTurnThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			var turns localQueues[string]
			testkit.Must(t, turns.enter(t.Context(), "a"))
			ctx, stop := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() { gone <- turns.enter(ctx, "a") }()
			synctest.Wait()
			stop()
			turns.leave("a")
			if err := <-gone; err == nil {
				turns.leave("a")
			}
			if n := len(turns.at); n != 0 {
				t.Fatal("the queue stands, and nobody is in front")
			}
		}
	})
}

// TestWaitersLeaveConnections: callers that wait for one key use one connection of the pool, so the
// holder gets one for its work.
func TestWaitersLeaveConnections(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	a.db.SetMaxOpenConns(3) // the lock, the first waiter, and the work
	key := ownKey()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	all := newBarrier(8)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			all.wait(t)
			testkit.Check(t, a.Do(ctx, key, nil, func(ctx context.Context) error {
				_, err := a.db.ExecContext(ctx, "SELECT 1")
				return err
			}))
		})
	}
	callers.Wait()
}

// Several on one session, whatever the order in which they are given.
func TestAdvisoryLockAll(t *testing.T) {
	t.Parallel()
	keys := []AdvisoryKey{ownKey(), PairKey(1, 2), ownKey(), ownKey()}
	backwards := []AdvisoryKey{keys[3], keys[2], keys[1], keys[0], keys[0]}
	var inside, most atomic.Int64
	var all sync.WaitGroup
	for i := range 4 {
		a := newAdvisory(t, nil)
		all.Go(func() {
			for range 5 {
				l, err := a.LockAll(t.Context(), [][]AdvisoryKey{keys, backwards}[i%2], nil)
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), inside.Add(1)))
				inside.Add(-1)
				testkit.Check(t, l.Unlock())
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d were inside at once", most.Load())
	}
	a := newAdvisory(t, nil)
	if _, err := a.LockAll(t.Context(), nil, nil); err == nil {
		t.Error("no keys were accepted")
	}
	err := a.Do(t.Context(), keys[3], nil, func(context.Context) error {
		_, err := a.LockAll(t.Context(), keys, &LockOptions{Wait: 20 * time.Millisecond})
		return err
	})
	if !errors.Is(err, dibs.ErrHeld) {
		t.Errorf("one of them is held: %v", err)
	}
	for _, key := range keys {
		if n := advisoryLocks(t, key); n != 0 {
			t.Errorf("%v: %d have it still", key, n)
		}
	}
}

// A circle with a session that takes the locks in another order.
func TestAdvisoryDeadlock(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	low, high := IntKey(owned.Add(1)), IntKey(1<<40+owned.Add(1))
	foreign, err := a.db.Conn(t.Context())
	testkit.Must(t, err)
	defer foreign.Close()
	mustExec(t, foreign, "SET deadlock_timeout = '1h'") // so the other session gets the error
	mustExec(t, foreign, "SELECT pg_advisory_lock("+high.String()+")")
	got := make(chan error, 1)
	go func() {
		_, err := a.LockAll(t.Context(), []AdvisoryKey{low, high}, nil)
		got <- err
	}()
	testkit.Eventually(t, "it waits", func() bool { return advisoryLocks(t, high) == 2 })
	mustExec(t, foreign, "SELECT pg_advisory_lock("+low.String()+")")
	if err := <-got; !errors.Is(err, ErrDeadlock) {
		t.Error(err)
	}
	mustExec(t, foreign, "SELECT pg_advisory_unlock_all()")
	testkit.Eventually(t, "nothing is left", func() bool { return advisoryLocks(t, low)+advisoryLocks(t, high) == 0 })
}

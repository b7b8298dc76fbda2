package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// namedServers are those that have named locks. Nightly adds MySQL.
var namedServers = map[string]func() *servertest.MariaDBServer{"MariaDB": mariadb}

// onMySQL runs a test on each of them.
func onMySQL(t *testing.T, test func(t *testing.T, s *servertest.MariaDBServer)) {
	t.Parallel()
	for name, server := range namedServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server())
		})
	}
}

func newNamed(t testing.TB, dsn string, o *NamedOptions) *Named {
	t.Helper()
	n, err := NewNamed(t.Context(), openDB(t, "mysql", dsn), o)
	testkit.Must(t, err)
	return n
}

// waiters returns the sessions that wait for a named lock in the database of n.
func waiters(s *servertest.MariaDBServer, n *Named) []string {
	var ids []string
	for _, row := range s.Query("SELECT id FROM information_schema.processlist WHERE state = 'User lock' AND db = '" + n.schema + "'") {
		ids = append(ids, row[0])
	}
	return ids
}

// free fails the test unless the lock is soon free, without waiters.
func free(t testing.TB, s *servertest.MariaDBServer, n *Named, name string) {
	t.Helper()
	testkit.Eventually(t, "nothing is left of "+name, func() bool {
		held, err := n.Held(t.Context(), name)
		return err == nil && !held && len(waiters(s, n)) == 0
	})
}

func TestNamedExcludes(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		dsn := ownDSN(s)
		one, two := newNamed(t, dsn, nil), newNamed(t, dsn, nil)
		first, err := one.Lock(t.Context(), "order 7", nil)
		testkit.Must(t, err)
		for _, n := range []*Named{one, two} {
			if _, err := n.TryLock(t.Context(), "order 7", nil); !errors.Is(err, dibs.ErrHeld) {
				t.Errorf("TryLock: %v", err)
			}
			for _, wait := range []time.Duration{time.Microsecond, 300 * time.Millisecond} {
				waited(t, wait, func() error {
					_, err := n.Lock(t.Context(), "order 7", &LockOptions{Wait: wait})
					return err
				})
			}
		}
		if held, err := two.Held(t.Context(), "order 7"); !held || err != nil {
			t.Errorf("Held: %v, %v", held, err)
		}
		got := make(chan error, 1)
		go func() {
			got <- two.Do(t.Context(), "order 7", nil, func(context.Context) error { return first.Context().Err() })
		}()
		testkit.Eventually(t, "the other waits", func() bool { return len(waiters(s, one)) == 1 })
		for range 2 {
			testkit.Check(t, first.Unlock())
		}
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("the other came while the first one held: %v", err)
		}
		if _, err := one.TryLock(t.Context(), "order 7", &LockOptions{Shared: true}); err == nil {
			t.Error("Shared was accepted")
		}
		free(t, s, one, "order 7")
	})
}

// Names that differ only by case, length or schema never meet.
func TestNamedNeverMeet(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		dsn := ownDSN(s)
		first := newNamed(t, dsn, nil)
		all := []*Named{first, newNamed(t, ownDSN(s), nil), newNamed(t, dsn, &NamedOptions{Schema: "other"}), newNamed(t, dsn, &NamedOptions{Schema: "OTHER"})}
		seen := map[string]bool{}
		for _, n := range all {
			for _, name := range alike() {
				full := n.Name(name)
				if seen[full] || len(full) > 64 || full != strings.ToLower(full) {
					t.Errorf("%q in %q is %q", name, n.schema, full)
				}
				seen[full] = true
			}
		}
		for i, n := range all {
			names := alike()
			if i == 0 {
				names = names[1:]
			}
			l, err := n.LockAll(t.Context(), names, &LockOptions{Wait: time.Minute})
			testkit.Must(t, err)
			defer l.Unlock()
		}
		if held, err := first.Held(t.Context(), alike()[0]); held || err != nil {
			t.Errorf("another one is held: %v, %v", held, err)
		}
		l, err := first.TryLock(t.Context(), alike()[0], nil)
		testkit.Must(t, err)
		testkit.Check(t, l.Unlock())
	})
	// By Python: hashlib.sha256, and base64.b32encode.
	const want = "dibs-4ia3zdpqai33zfetuwsaz4j4dtkytgt2govj3gdnhj3wbo7umdsq"
	if got := lockName("app", "order 7"); got != want {
		t.Errorf("got %s", got)
	}
}

func TestNamedWaysOut(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		n := newNamed(t, ownDSN(s), nil)
		ways := map[string]func(ctx context.Context) error{
			"return": func(context.Context) error { return nil },
			"error":  func(context.Context) error { return errors.New("boom") },
			"panic":  func(context.Context) error { panic("boom") },
			"Goexit": func(context.Context) error { runtime.Goexit(); return nil },
			"a transaction left open": func(ctx context.Context) error {
				_, err := n.db.BeginTx(ctx, nil)
				return err
			},
		}
		for name, way := range ways {
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				_ = n.Do(t.Context(), name, nil, func(ctx context.Context) error {
					if held, err := n.Held(ctx, name); !held || err != nil {
						t.Errorf("%s: %v, %v", name, held, err)
					}
					return way(ctx)
				})
			}()
			<-done
			if held, err := n.Held(t.Context(), name); held || err != nil {
				t.Errorf("%s: held is %v, %v", name, held, err)
			}
		}
	})
}

// A wait that is given up does not go on in the server.
func TestNamedCancelledWait(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		dsn := ownDSN(s)
		first := newNamed(t, dsn, nil)
		l, err := first.Lock(t.Context(), "x", nil)
		testkit.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, second := make(chan error, 1), newNamed(t, dsn, nil)
		go func() {
			_, err := second.Lock(ctx, "x", nil)
			got <- err
		}()
		testkit.Eventually(t, "it waits in the server", func() bool { return len(waiters(s, first)) == 1 })
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		testkit.Eventually(t, "no session waits", func() bool { return len(waiters(s, first)) == 0 })
		testkit.Check(t, l.Unlock())
		free(t, s, first, "x")
	})
}

func TestNamedSessionEnds(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		dsn := ownDSN(s)
		n, calm := newNamed(t, dsn, &NamedOptions{Heartbeat: 20 * time.Millisecond}), newNamed(t, dsn, &NamedOptions{Heartbeat: time.Hour})
		l, err := n.Lock(t.Context(), "x", nil)
		testkit.Must(t, err)
		stays, err := calm.Lock(t.Context(), "y", nil)
		testkit.Must(t, err)
		kill := func(name string) {
			s.Query("KILL " + s.Query("SELECT IS_USED_LOCK('" + n.Name(name) + "')")[0][0])
		}
		kill("x")
		wantCause(t, l, dibs.ErrLost)
		if err := l.Unlock(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		testkit.Check(t, stays.Unlock())
		// Found out only by Unlock.
		n = calm
		err = calm.Do(t.Context(), "x", nil, func(context.Context) error {
			kill("x")
			return nil
		})
		if !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Do: %v", err)
		}
		// The server lets go of it soon after the connection has ended.
		if err := calm.Do(t.Context(), "x", &LockOptions{Wait: testkit.Limit}, func(context.Context) error { return nil }); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		// A wait whose question is ended is an error, and no grant.
		l, err = calm.Lock(t.Context(), "z", nil)
		testkit.Must(t, err)
		got := make(chan error, 1)
		other := newNamed(t, "root@tcp("+s.Addr()+")/"+calm.schema, nil)
		go func() {
			_, err := other.Lock(t.Context(), "z", nil)
			got <- err
		}()
		testkit.Eventually(t, "it waits", func() bool {
			for _, id := range waiters(s, other) {
				s.Query("KILL QUERY " + id)
				return true
			}
			return false
		})
		if err := <-got; !errors.Is(err, ErrServer) {
			t.Errorf("a wait whose question is ended: %v", err)
		}
		testkit.Check(t, l.Unlock())
		free(t, s, calm, "z")
	})
}

// A circle with a session that takes the locks in another order.
func TestNamedDeadlock(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		n := newNamed(t, ownDSN(s), nil)
		names := []string{"a", "b"}
		if n.Name("b") < n.Name("a") {
			names = []string{"b", "a"}
		}
		foreign, err := n.db.Conn(t.Context())
		testkit.Must(t, err)
		defer foreign.Close()
		get := func(name string) (got sql.NullInt64, err error) {
			err = foreign.QueryRowContext(t.Context(), "SELECT GET_LOCK('"+n.Name(name)+"', 60)").Scan(&got)
			return got, err
		}
		if _, err := get(names[1]); err != nil {
			t.Fatal(err)
		}
		ours := make(chan error, 1)
		go func() {
			l, err := n.LockAll(t.Context(), names, nil)
			if err == nil {
				err = l.Unlock()
			}
			ours <- err
		}()
		testkit.Eventually(t, "it waits", func() bool {
			return len(waiters(s, n)) == 1
		})
		// The server chooses which one gets the error.
		_, theirs := get(names[0])
		if theirs != nil {
			mustExec(t, foreign, "DO RELEASE_LOCK('"+n.Name(names[1])+"')")
		}
		err = <-ours
		if (theirs == nil) != errors.Is(err, ErrDeadlock) || (theirs != nil) != (err == nil) {
			t.Errorf("ours: %v; theirs: %v", err, theirs)
		}
		if theirs != nil && !errors.Is(n.sessions.functions.(*namedFunctions).explain("x", theirs), ErrDeadlock) {
			t.Errorf("theirs: %v", theirs)
		}
		for _, name := range names {
			mustExec(t, foreign, "DO RELEASE_LOCK('"+n.Name(name)+"')")
			free(t, s, n, name)
		}
	})
}

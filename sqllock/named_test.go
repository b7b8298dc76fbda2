package sqllock

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

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

// A wait whose question is ended is an error, and no grant.
func TestNamedQuestionEnds(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		dsn := ownDSN(s)
		n, other := newNamed(t, dsn, nil), newNamed(t, dsn, nil)
		if _, err := n.TryLock(t.Context(), "z", &LockOptions{Shared: true}); err == nil {
			t.Error("Shared was accepted")
		}
		l, err := n.Lock(t.Context(), "z", nil)
		testkit.Must(t, err)
		got := make(chan error, 1)
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
		free(t, s, n, "z")
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

//go:build unix

package servertest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/wire"
)

// TestPostgresStandby: a standby that is promoted has what it received, and the old primary comes
// back without what only it had.
func TestPostgresStandby(t *testing.T) {
	t.Parallel()
	options := PostgresOptions{NoSync: true, Password: "a'b c", Standbys: true}
	old := Postgres(t, &options)
	old.Query("CREATE TABLE kept AS SELECT 'both' AS n")
	options.StandbyOf = old
	s := Postgres(t, &options)
	w, err := wire.Open(old.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s.Follow(w.Addr())
	s.AwaitStandby(old)
	if got := s.Query("SELECT pg_is_in_recovery(), n FROM kept"); !reflect.DeepEqual(got, [][]string{{"t", "both"}}) {
		t.Errorf("the standby says %v", got)
	}
	w.Set(wire.Trouble{Hold: true}, nil)
	old.Query("INSERT INTO kept VALUES ('old')")
	w.Set(wire.Trouble{Hold: true, Refuse: true}, nil)
	w.Reset()
	wrote, err := old.Position()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Received(); err != nil || got >= wrote {
		t.Errorf("the standby has %d bytes of %d, %v", got, wrote, err)
	}
	s.Promote()
	s.Query("INSERT INTO kept VALUES ('new')")
	old.Query("INSERT INTO kept VALUES ('alone')") // it does not know
	w.Set(wire.Trouble{}, nil)
	w.Lead(s.Addr())
	old.Rejoin(s, w.Addr())
	old.AwaitStandby(s)
	awaitRow(t, old.Do, "SELECT string_agg(n, ' ' ORDER BY n) FROM kept", "both new")
	if got := old.Query("SELECT pg_is_in_recovery()"); got[0][0] != "t" {
		t.Error("the old primary is not a standby")
	}
}

// TestMariaDBReplica: a replica that is promoted has what it received, and the old primary comes back
// without what only it had.
func TestMariaDBReplica(t *testing.T) {
	t.Parallel()
	for name, semi := range map[string]bool{"semi-synchronous": true, "asynchronous": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := MariaDBOptions{NoSync: true, Replicas: true, SemiSync: semi, Password: "a'b"}
			old, s := MariaDB(t, &options), MariaDB(t, &options)
			w, err := wire.Open(old.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			s.Follow(w.Addr())
			s.AwaitStandby(old)
			old.Query("CREATE TABLE kept (n VARCHAR(9)); INSERT INTO kept VALUES ('both')")
			s.AwaitStandby(old)
			w.Set(wire.Trouble{Hold: true}, nil)
			alone := make(chan error, 1)
			go func() {
				_, err := old.Do("INSERT INTO kept VALUES ('alone')")
				alone <- err
			}()
			if semi { // it is in the log, and nobody sees it
				awaitRow(t, old.Do, "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for semi-sync ACK%'", "1")
			} else if err := <-alone; err != nil {
				t.Fatal(err)
			}
			w.Set(wire.Trouble{Hold: true, Refuse: true}, nil)
			w.Reset()
			wrote, err := old.Position()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := s.Received(); err != nil || got >= wrote {
				t.Errorf("the replica has %d transactions of %d, %v", got, wrote, err)
			}
			if got := old.Query("SELECT GROUP_CONCAT(n) FROM kept")[0][0]; strings.Contains(got, "alone") == semi {
				t.Errorf("the old primary shows %s", got)
			}
			s.Promote()
			w.Set(wire.Trouble{}, nil)
			w.Lead(s.Addr())
			old.Rejoin(s, w.Addr())
			old.AwaitStandby(s)
			s.Query("INSERT INTO kept VALUES ('new')")
			old.AwaitStandby(s)
			awaitRow(t, old.Do, "SELECT GROUP_CONCAT(n ORDER BY n) FROM kept", "both,new")
			if semi {
				if err := <-alone; err == nil {
					t.Error("what no replica had was committed")
				}
			}
		})
	}
}

//go:build unix

package servertest

import (
	"reflect"
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

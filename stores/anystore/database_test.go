package anystore

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestDatabase: where Database returns one, a record is committed in its transactions, and
// other stores have none.
func TestDatabase(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "dibs.db")
	for _, url := range []string{"memory:", file} {
		if d := openDatabase(t, url); d != nil {
			t.Errorf("%s has a database", url)
		}
	}
	checkDatabase(t, "sqlite:"+filepath.Join(t.TempDir(), "app.db")+"?shared=true")
}

func openDatabase(t *testing.T, url string) *Database {
	t.Helper()
	s := openStore(t, url)
	d, err := s.Database()
	testkit.Must(t, err)
	if d != nil {
		t.Cleanup(func() { _ = d.DB.Close() })
	}
	return d
}

// openStore opens a store with its tables.
func openStore(t *testing.T, url string) *Store {
	t.Helper()
	migrated(t, url)
	s, err := Open(t.Context(), url, ToUse)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// migrated makes the tables of a store.
func migrated(t *testing.T, url string) {
	t.Helper()
	_, err := Migrate(t.Context(), url)
	testkit.Must(t, err)
}

// checkDatabase: a row and the record are committed together.
func checkDatabase(t *testing.T, url string) {
	t.Helper()
	s := openStore(t, url)
	d, err := s.Database()
	if err != nil || d == nil {
		t.Fatalf("%v, %v; want a database", d, err)
	}
	defer d.DB.Close()
	if _, err := d.DB.ExecContext(t.Context(), "CREATE TABLE effects (n INT)"); err != nil {
		t.Fatal(err)
	}
	client, err := dibs.New(s.Store, nil)
	testkit.Must(t, err)
	defer client.Close()
	for range 2 {
		got, err := dibs.OnceIn(t.Context(), client, d.Transactor, "k", nil, func(ctx context.Context) (int, error) {
			tx, err := d.Tx(ctx)
			if err != nil {
				return 0, err
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO effects VALUES (1)")
			return 7, err
		})
		if err != nil || got != 7 {
			t.Errorf("%v, %v; want 7", got, err)
		}
	}
	var rows int
	if err := d.DB.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM effects").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d effects, %v; want 1", rows, err)
	}
	if _, err := d.Tx(t.Context()); err == nil {
		t.Error("a context without a transaction has one")
	}
}

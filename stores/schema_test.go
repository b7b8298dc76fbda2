package stores

import (
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// TestOnlyMigrateMakesASchema: a schema with a misspelt name would be a store of its own, so a
// command that opens it fails, and names it. Migrate makes it.
func TestOnlyMigrateMakesASchema(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	for _, more := range []string{"", "&prefix=p", "&migrate=true"} {
		_, err := Open(t.Context(), server.URL()+"&schema=locsk"+more)
		if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "no schema \"locsk\"") || !strings.Contains(err.Error(), "dibs migrate") {
			t.Errorf("%q: %v", more, err)
		}
	}
	if n := len(server.Query("SELECT 1 FROM pg_namespace WHERE nspname = 'locsk'")); n != 0 {
		t.Error("the schema is there")
	}
	url := server.URL() + "&schema=locks"
	if _, err := Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), url)
	testkit.Must(t, err)
	testkit.Check(t, s.Close())
}

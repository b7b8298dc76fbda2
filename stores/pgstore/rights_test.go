package pgstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestEveryRight: a user that lacks one of the rights of the README cannot open the store, and the
// error and Check name what it lacks.
func TestEveryRight(t *testing.T) {
	t.Parallel()
	server := shared()
	owner := open(t, server.URL(), &Options{Schema: testkit.Own()})
	schema := owner.names.schema
	role := schema + "_app"
	server.Query("CREATE ROLE " + role + " LOGIN; " + strings.NewReplacer("SCHEMA own", "SCHEMA "+schema, " app;", " "+role+";").Replace(owner.names.sql(leastRights)))
	url := strings.Replace(server.URL(), "postgres@", role+"@", 1)
	able := open(t, url, &Options{Schema: schema})
	sqltest.Work(t, able)
	revoked := func(right, on, says string) {
		t.Helper()
		server.Query("REVOKE " + right + " ON " + on + " FROM " + role)
		s, err := Open(t.Context(), url, &Options{Schema: schema})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), says) {
			t.Errorf("without %s ON %s: %v", right, on, err)
		}
		found, err := able.Check(t.Context())
		named := false
		for _, f := range found {
			named = named || f.Name == "rights" && strings.Contains(f.What, says)
		}
		if err == nil && !named {
			t.Errorf("without %s ON %s, Check found %+v", right, on, found)
		}
		server.Query("GRANT " + right + " ON " + on + " TO " + role)
	}
	for _, n := range owner.names.needs() {
		on := schema + "." + n.name
		if n.kind == "sequence" {
			on = "SEQUENCE " + on
		}
		revoked(n.verb, on, n.name)
	}
	revoked("USAGE", "SCHEMA "+schema, schema)
	server.Query("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA " + schema + " FROM PUBLIC")
	if s, err := Open(t.Context(), url, &Options{Schema: schema}); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("without functions: %v", err)
		if err == nil {
			s.Close()
		}
	}
}

package sqllock

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
)

// TestLocalLocksAreRefused: where locks exclude only the sessions of one node, or nobody, they are
// refused, and the error names what says so. The servers are stand-ins, which answer as such a node
// does.
func TestLocalLocksAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		variable, value, version string
		local                    bool
	}{
		"Galera":               {"wsrep_on", "ON", "10.11.6-MariaDB", true},
		"MySQL, all primaries": {"group_replication_single_primary_mode", "OFF", "8.0.36", true},
		"MariaDB alone":        {"", "", "10.11.6-MariaDB", false},
	} {
		db := (&fakeServer{query: func(query string, _ []driver.NamedValue) ([]driver.Value, error) {
			if !strings.HasPrefix(query, "SHOW VARIABLES") {
				return []driver.Value{"app", test.version, int64(0)}, nil
			}
			if test.variable == "" {
				return nil, nil
			}
			return []driver.Value{test.variable, test.value}, nil
		}}).open(t)
		_, err := NewNamed(t.Context(), db, nil)
		if errors.Is(err, ErrLocal) != test.local || test.local && !strings.Contains(err.Error(), test.variable) || !test.local && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	db := (&fakeServer{query: func(string, []driver.NamedValue) ([]driver.Value, error) {
		return []driver.Value{"CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)"}, nil
	}}).open(t)
	if _, err := NewAdvisory(t.Context(), db, nil); !errors.Is(err, ErrLocal) || !strings.Contains(err.Error(), "CockroachDB") {
		t.Errorf("CockroachDB: %v", err)
	}
}

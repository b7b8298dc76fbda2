package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// flip is a global variable of the server with a value that sessions inherit.
type flip struct{ name, value string }

// flips are settings that change what statements do, or whether they are committed.
var flips = []flip{
	{"sql_select_limit", "1"},
	{"completion_type", "'CHAIN'"}, {"completion_type", "'RELEASE'"},
	{"autocommit", "0"},
	{"sql_safe_updates", "1"},
	{"max_join_size", "1"},
	{"max_sort_length", "64"},
	{"sql_mode", "'ANSI,NO_BACKSLASH_ESCAPES'"}, {"sql_mode", "''"},
	{"time_zone", "'+09:00'"},
	{"optimizer_switch", "'index_merge=off,materialization=off,semijoin=off,derived_merge=off,mrr=on'"},
}

// flipsOf are those that only one kind of server has.
var flipsOf = map[string][]flip{
	"MariaDB": {
		{"optimizer_switch", "'mrr_sort_keys=on'"},
		{"tx_isolation", "'SERIALIZABLE'"}, {"tx_isolation", "'READ-UNCOMMITTED'"}, {"tx_read_only", "1"},
		{"sql_mode", "'ORACLE'"}, {"sql_mode", "'EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT'"},
		// A millisecond: with a microsecond, MariaDB 10.11 sometimes leaves a session without an answer.
		{"max_statement_time", "0.001"}, {"in_predicate_conversion_threshold", "2"},
		{"query_cache_type", "1"}, {"optimizer_max_sel_arg_weight", "1"}, {"sort_buffer_size", "1024"},
	},
	"MySQL": {
		{"transaction_isolation", "'SERIALIZABLE'"}, {"transaction_read_only", "1"},
		{"max_execution_time", "1"}, {"range_optimizer_max_mem_size", "1"},
	},
}

// TestInherited: what a session inherits from the server's global variables changes no answer. No
// permit is granted twice, and what is granted is committed.
func TestInherited(t *testing.T) {
	t.Parallel()
	for name := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := inheritor(t, name)
			for _, f := range append(flips, flipsOf[name]...) {
				if err := n.try(t, f); err != nil {
					t.Errorf("%s = %s: %v", f.name, f.value, err)
				}
			}
		})
	}
}

// inherits opens stores on a server whose global variables it changes.
type inherits struct {
	server *servertest.MariaDBServer
	prefix string
	before *Store
	root   *sql.DB
	ledger string
}

func inheritor(t *testing.T, name string) *inherits {
	t.Helper()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{MySQL: name == "MySQL", NoSync: true, Settings: inheritSettings[name]})
	n := &inherits{server: server, prefix: testkit.Own()}
	n.before = open(t, server.URL(), &Options{Prefix: n.prefix, PruneEvery: -1})
	n.ledger = ledgerOf(n.prefix)
	n.root = openDSN(t, server.DSN())
	// One session, which began before all changes.
	n.root.SetMaxOpenConns(1)
	n.exec(t, "CREATE TABLE "+n.ledger+" (what VARCHAR(200) NOT NULL) ENGINE = InnoDB")
	return n
}

// inheritSettings make a server's query cache one that sessions can use.
var inheritSettings = map[string][]string{"MariaDB": {"query_cache_type = ON", "query_cache_size = 16M"}}

func (n *inherits) exec(t *testing.T, text string) {
	t.Helper()
	if _, err := n.root.ExecContext(t.Context(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// errNotSet: the server does not take that value.
var errNotSet = errors.New("the server refuses the value")

// try opens a store, and a pool of an application, whose sessions inherit the value.
func (n *inherits) try(t *testing.T, f flip) error {
	t.Helper()
	var was sql.NullString
	if err := n.root.QueryRowContext(t.Context(), "SELECT @@GLOBAL."+f.name).Scan(&was); err != nil {
		return fmt.Errorf("%w: %w", errNotSet, err)
	}
	if _, err := n.root.ExecContext(t.Context(), "SET GLOBAL "+f.name+" = "+f.value); err != nil {
		return fmt.Errorf("%w: %w", errNotSet, err)
	}
	defer func() {
		if _, err := n.root.ExecContext(context.WithoutCancel(t.Context()), "SET GLOBAL "+f.name+" = "+restoring(was)); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
	}()
	after, err := Open(t.Context(), n.server.URL(), &Options{Prefix: n.prefix, PruneEvery: -1})
	if err != nil {
		return err
	}
	defer after.Close()
	if f.name == "max_statement_time" { // of which the statements here take less
		var limit float64
		if err := after.front.QueryRowContext(t.Context(), "SELECT @@SESSION.max_statement_time").Scan(&limit); err != nil || limit != 0 {
			return fmt.Errorf("a session of the store ends its statements after %v s (%v)", limit, err)
		}
	}
	if err := sqltest.Unmoved(t.Context(), n.before, after); err != nil {
		return err
	}
	return n.transaction(t, after, f)
}

// refuses are the settings with which the server refuses what an application's session writes.
var refuses = map[string]bool{"tx_read_only": true, "transaction_read_only": true, "max_statement_time": true, "max_execution_time": true}

// TestNoRows: the driver cannot connect to a server whose sql_select_limit is 0. The error names it.
func TestNoRows(t *testing.T) {
	t.Parallel()
	for name := range servers {
		err := inheritor(t, name).try(t, flip{"sql_select_limit", "0"})
		if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "sql_select_limit") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// restoring returns a value of a global variable as SET takes it.
func restoring(v sql.NullString) string {
	if !v.Valid {
		return "NULL"
	}
	var number float64
	if n, err := fmt.Sscanf(v.String, "%g", &number); n == 1 && err == nil {
		return v.String
	}
	return "'" + v.String + "'"
}

// transaction settles a key in a transaction of the application. Its sessions have what they
// inherit, so the run may fail; then neither its effect nor its answer is kept.
func (n *inherits) transaction(t *testing.T, s *Store, f flip) error {
	t.Helper()
	db, err := sql.Open("mysql", n.server.DSN())
	if err != nil {
		return err
	}
	defer db.Close()
	client, err := dibs.New(s, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	key := testkit.Own()
	_, failed := OnceTx(t.Context(), client, s.Transactions(db, nil), key, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO "+n.ledger+" (what) VALUES ('"+key+"')")
		return "booked", err
	})
	entries, want := 0, 1
	if failed != nil {
		want = 0
	}
	if err := n.root.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+n.ledger+" WHERE what='"+key+"'").Scan(&entries); err != nil {
		return err
	}
	claims, answers := []store.Claim{{Key: store.Key{Name: key}, Mode: store.Look, Permits: 1, Weight: 1, MaxAge: time.Hour}}, make([]store.Answer, 1)
	if err := errors.Join(n.before.Claim(t.Context(), claims, answers), answers[0].Err); err != nil {
		return err
	}
	if kept := answers[0].State == store.Done; entries != want || kept != (want == 1) {
		return fmt.Errorf("a transaction ended with %v; it left %d entries, and its answer is %+v", failed, entries, answers[0])
	}
	if failed != nil && !refuses[f.name] {
		return fmt.Errorf("a transaction of the application: %w", failed)
	}
	return nil
}

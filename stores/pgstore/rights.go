package pgstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/store/storekit"
)

// need is a right that a program needs: a verb on a table, a sequence or a function.
type need struct{ kind, verb, name string }

// public returns the names of the public functions of SQL. PUBLIC may not call them.
func (n namer) public() (all []string) {
	for _, x := range []string{"settle_in", "reserve_in", "new_token", "claim", "renew", "release", "hold_in"} {
		all = append(all, n.prefix+"_"+x)
	}
	return all
}

// needs returns the rights that a program needs to use the store.
func (n namer) needs() (all []need) {
	for _, x := range []string{"key", "holder", "waiter", "progress"} {
		for _, verb := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			all = append(all, need{"table", verb, n.prefix + "_" + x})
		}
	}
	return append(all, need{"table", "SELECT", n.prefix + "_meta"}, need{"table", "UPDATE", n.prefix + "_meta"}, need{"sequence", "USAGE", n.prefix + "_number"})
}

// lacking returns which of these rights the user lacks, "INSERT, DELETE ON own.dibs_waiter", and
// whether it may not even claim, as a user that only reads. It also looks at the store's functions,
// but for the public ones, which another user calls.
func (s *Store) lacking(ctx context.Context) (missing []string, reads bool, err error) {
	all := s.names.needs()
	columns := make([][]string, 3)
	for _, x := range all {
		columns[0], columns[1], columns[2] = append(columns[0], x.kind), append(columns[1], x.verb), append(columns[2], x.name)
	}
	rows, err := s.front.Query(ctx, `SELECT x.verb, x.name FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS x (kind, verb, name, n)
		WHERE NOT CASE x.kind WHEN 'sequence' THEN has_sequence_privilege(quote_ident($1) || '.' || quote_ident(x.name), x.verb)
			ELSE has_table_privilege(quote_ident($1) || '.' || quote_ident(x.name), x.verb) END
		UNION ALL SELECT 'EXECUTE', 'FUNCTION ' || $1 || '.' || p.proname FROM pg_proc p JOIN pg_namespace m ON m.oid = p.pronamespace
		WHERE m.nspname = $1 AND starts_with(p.proname, $5) AND p.proname <> ALL ($6::text[])
			AND NOT has_function_privilege(p.oid, 'EXECUTE')`,
		pgx.QueryExecModeExec, s.names.schema, columns[0], columns[1], columns[2], s.names.prefix+"_", s.names.public())
	if err != nil {
		return nil, false, err
	}
	verbs := map[string][]string{} // by what they are on
	var verb, name string
	_, err = pgx.ForEachRow(rows, []any{&verb, &name}, func() error {
		reads = reads || verb != "SELECT" && name == s.names.prefix+"_key"
		if verb != "EXECUTE" {
			name = s.names.schema + "." + name
		}
		verbs[name] = append(verbs[name], verb)
		return nil
	})
	functions := 0
	for _, name := range slices.Sorted(maps.Keys(verbs)) {
		if strings.HasPrefix(name, "FUNCTION ") {
			if functions++; functions > 1 {
				continue
			}
		}
		missing = append(missing, strings.Join(verbs[name], ", ")+" ON "+name)
	}
	if functions > 1 {
		missing[0] = "EXECUTE ON ALL FUNCTIONS IN SCHEMA " + s.names.schema // the first by name
	}
	return missing, reads, err
}

// requireRights returns an ErrUnauthorized that names the rights that the user lacks.
func (s *Store) requireRights(ctx context.Context) error {
	missing, _, err := s.lacking(ctx)
	if err != nil || len(missing) == 0 {
		return explain(err)
	}
	return fault(ErrUnauthorized, errors.New("it lacks "+strings.Join(missing, "; ")), "GRANT them; "+rightsCure)
}

// checkRights looks for the rights that programs need.
func (s *Store) checkRights(ctx context.Context, c *storekit.Checkup) error {
	missing, reads, err := s.lacking(ctx)
	c.Rights(strings.Join(missing, "; "), reads)
	return err
}

// grants are the statements that give a user what it needs on each kind of thing.
var grants = map[string]string{
	"schema":   "GRANT USAGE ON SCHEMA %s",
	"table":    "GRANT SELECT, INSERT, UPDATE, DELETE ON %s",
	"sequence": "GRANT USAGE ON SEQUENCE %s",
	"function": "GRANT EXECUTE ON FUNCTION %s",
}

// grant returns the cure of an error about a missing right, if the server says it in English:
// "permission denied for table dibs_key".
func grant(e *pgconn.PgError) (cure string, ok bool) {
	if e.Code != "42501" {
		return "", false
	}
	said, ok := strings.CutPrefix(e.Message, "permission denied for ")
	kind, name, _ := strings.Cut(said, " ")
	how, known := grants[kind]
	if !ok || !known {
		return "", false
	}
	cure = "the store's user needs: " + fmt.Sprintf(how, name) + " TO …"
	if kind == "table" {
		cure += "; to list and check only: GRANT SELECT ON " + name + " TO …"
	}
	return cure + "; " + rightsCure, true
}

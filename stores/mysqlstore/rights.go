package mysqlstore

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/dibs-go/dibs/store/storekit"
)

// has reports whether a table of the store is there, and this user may see it.
func (f *facts) has(n namer, table string) bool { return f.engines[n.table(table)] != "" }

// writes are the statements that programs need rights for, with the name of their table. To explain
// a statement needs the rights to it, and carries it out nowhere.
var writes = map[string]string{
	"INSERT": "EXPLAIN INSERT INTO @%s (k) VALUES ('')",
	"UPDATE": "EXPLAIN UPDATE @%s SET k=k WHERE k=''",
	"DELETE": "EXPLAIN DELETE FROM @%s WHERE k=''",
}

// lacking returns which rights that programs need the user lacks, what the server says of the
// first, and whether the user may not even claim, as one that only reads. It asks for the tables
// that are there.
func (s *Store) lacking(ctx context.Context, there func(table string) bool) (missing []string, said error, reads bool, err error) {
	try := func(table, verb, statement string) error {
		if !there(table) {
			return nil
		}
		err := s.script().raw(strings.ReplaceAll(statement, "%s", table)).asks(func(*reading) {}).on(ctx, s.front)
		switch code(err) {
		case 0:
			return err
		case 1142, 1143, 1044, 1370:
			said = cmp.Or(said, err)
			missing = append(missing, verb+" ON "+s.names.table(table))
			reads = reads || table == "key"
		}
		return nil // another finding says what is wrong with the table or the server
	}
	for _, table := range tables {
		if table == "meta" {
			continue
		}
		for _, verb := range sorted(writes) {
			if err := try(table, verb, writes[verb]); err != nil {
				return nil, nil, false, err
			}
		}
	}
	err = try("meta", "UPDATE", "EXPLAIN UPDATE @meta SET fence=fence WHERE version=0")
	return missing, said, reads, err
}

// requireRights returns an ErrUnauthorized that names the rights that the user lacks.
func (s *Store) requireRights(ctx context.Context) error {
	missing, said, _, err := s.lacking(ctx, func(string) bool { return true })
	if err != nil || len(missing) == 0 {
		return explain(err)
	}
	return fmt.Errorf("%w; it lacks %s", explain(said), strings.Join(missing, ", "))
}

// checkRights looks for the rights that programs need.
func (s *Store) checkRights(ctx context.Context, c *storekit.Checkup, f *facts) error {
	missing, _, reads, err := s.lacking(ctx, func(table string) bool { return f.has(s.names, table) })
	c.Rights(strings.Join(missing, ", "), reads)
	return err
}

// denied matches what the server says of a missing right: "SELECT command denied to user
// 'app'@'host' for table `app`.`dibs_key`", or of all tables of a database.
var (
	denied       = regexp.MustCompile("^(.+) command denied to user ('.*'@'.*') for table [`']?(.+?)[`']?$")
	deniedAccess = regexp.MustCompile("^Access denied for user ('.*'@'.*') to database '(.*)'$")
)

// grant returns the cure of an error about a missing right, or "".
func grant(message string) string {
	if m := denied.FindStringSubmatch(message); m != nil {
		return "GRANT " + m[1] + " ON " + strings.ReplaceAll(m[3], "`", "") + " TO " + m[2] + "; "
	}
	if m := deniedAccess.FindStringSubmatch(message); m != nil {
		return "GRANT SELECT, INSERT, UPDATE, DELETE ON " + m[2] + ".* TO " + m[1] + " (to list and check only, SELECT is enough); "
	}
	return ""
}

package sqllock

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func TestIdentifiers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, postgres, others string }{
		{"account", `"account"`, "`account`"},
		{"Account", `"Account"`, "`Account`"},
		{"shop.account", `"shop"."account"`, "`shop`.`account`"},
		{"order", `"order"`, "`order`"},
		{`a"b`, `"a""b"`, "`a\"b`"},
		{"a`b", "\"a`b\"", "`a``b`"},
		{"x; DROP TABLE account; --", `"x; DROP TABLE account; --"`, "`x; DROP TABLE account; --`"},
		{"größe", `"größe"`, "`größe`"},
		{strings.Repeat("x", 64), "", "`" + strings.Repeat("x", 64) + "`"},
		{strings.Repeat("x", 65), "", ""},
		{"", "", ""},
		{".account", "", ""},
		{"shop.", "", ""},
		{"a.b.c", "", ""},
		{"a\x00b", "", ""},
		{"a\nb", "", ""},
		{"a ", "", ""},
		{"a\xff", "", ""},
	} {
		for _, d := range []Dialect{PostgreSQL, MySQL, MariaDB, SQLite} {
			want := c.others
			if d == PostgreSQL {
				want = c.postgres
			}
			got, err := d.table("Options.Table", c.name)
			if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "Options.Table is ") {
				t.Errorf("%v: %q is written %s, %v; want %s", d, c.name, got, err, want)
			}
		}
	}
}

// A quoted name means what has the name, and no text, not even where it is missing.
func TestIdentifiersMeanNothingElse(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 1)
		for _, name := range []string{`a"b`, "a`b", "select", "Tab Le", `'; DROP TABLE x; --`, `\`, "%s", "$1", "?"} {
			quoted, err := b.d.identifier("the name", name)
			testkit.Must(t, err)
			if _, err := b.ExecContext(t.Context(), "CREATE TABLE "+quoted+" (id BIGINT PRIMARY KEY)"); err != nil {
				t.Errorf("%s: %v", quoted, err)
			}
			if _, err := b.ExecContext(t.Context(), "SELECT "+quoted+" FROM account"); err == nil {
				t.Errorf("the column %s is missing, and read", quoted)
			}
			var n int
			if err := b.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+quoted).Scan(&n); err != nil || n != 0 {
				t.Errorf("%s has %d rows, %v", quoted, n, err)
			}
		}
	})
}

func TestDialectString(t *testing.T) {
	t.Parallel()
	for d, want := range map[Dialect]string{PostgreSQL: "PostgreSQL", MySQL: "MySQL", MariaDB: "MariaDB", SQLite: "SQLite", 9: "Dialect(9)"} {
		if got := d.String(); got != want {
			t.Errorf("%s; want %s", got, want)
		}
		if err := d.validate(); (err == nil) != (d < 9) {
			t.Errorf("%v: %v", d, err)
		}
	}
}

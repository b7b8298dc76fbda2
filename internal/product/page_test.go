package product

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestPage: docs/reference/databases.md has the tables of the code, word by word.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/databases.md")
	testkit.Must(t, err)
	for name, want := range map[string]string{
		"PostgreSQL": PostgreSQL.table("`pgstore`", "`sqllock.Advisory`, `LockTx`"),
		"MySQL":      MySQL.table("`mysqlstore`", "`sqllock.Named`"),
		"Redis":      Redis.table("`redisstore`", ""),
	} {
		if !strings.Contains(string(page), "\n"+want+"\n") {
			t.Errorf("docs/reference/databases.md does not have the table of %s:\n%s", name, want)
		}
	}
}

// table returns the table of the page. There is no column of locks if its head is "".
func (p *Protocol) table(stores, locks string) string {
	var b strings.Builder
	row := func(product, signs, stores, locks, why string) {
		if b.WriteString("| " + product + " | " + signs + " | " + stores); locks != "" {
			b.WriteString(" | " + locks)
		}
		b.WriteString(" | " + why + " |\n")
	}
	row("product", "recognized by", stores, locks, "why, and what to do")
	line := "---"
	if locks == "" {
		line = ""
	}
	row("---", "---", "---", line, "---")
	for i := range p.Products {
		x := &p.Products[i]
		var signs []string
		for _, s := range x.Signs {
			sign := fmt.Sprintf("`%s`", s.Asked)
			if s.Says != "" {
				sign += fmt.Sprintf(": `%s`", strings.TrimSpace(s.Says))
			}
			signs = append(signs, sign)
		}
		onLocks, why := "", ""
		if locks != "" {
			onLocks = x.Locks.String()
		}
		if x.Why != "" {
			why = sentence(x.Why) + " " + sentence(x.Cure)
		}
		name := strings.TrimPrefix(x.Name, "a ")
		row(fmt.Sprintf("[%s](%s)", name, x.Source), strings.Join(signs, "<br>"), x.Store.String(), onLocks, why)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// TestTables: each row has its sources and its reasons, and each sign is asked for.
func TestTables(t *testing.T) {
	for name, p := range map[string]*Protocol{"PostgreSQL": PostgreSQL, "MySQL": MySQL, "Redis": Redis} {
		names := map[string]bool{}
		for _, x := range p.Products {
			switch {
			case names[x.Name] || x.Name == "" || len(x.Signs) == 0:
				t.Errorf("%s: %q has no name of its own, or no sign", name, x.Name)
			case !strings.HasPrefix(x.Source, "https://"):
				t.Errorf("%s: %s has the source %q", name, x.Name, x.Source)
			case (x.Store == Tested) != (x.Why == "") || (x.Why == "") != (x.Cure == "") || x.Store == Tested && x.Locks != Tested:
				t.Errorf("%s: %s is %v, because %q, to be cured by %q", name, x.Name, x.Store, x.Why, x.Cure)
			}
			names[x.Name] = true
			for _, s := range x.Signs {
				if len(p.Questions) > 0 && !asks(strings.Join(p.Questions, "\n"), s.Asked) {
					t.Errorf("%s: no question asks for %s of %s", name, s.Asked, x.Name)
				}
			}
		}
	}
}

// asks reports whether a name is in the text of questions: as it is, or its last word in quotes.
func asks(questions, name string) bool {
	_, word, _ := strings.Cut(name, " ")
	schema, table, _ := strings.Cut(word, ".")
	quoted := func(text string) bool { return strings.Contains(questions, "'"+text+"'") }
	return strings.Contains(questions, name) || quoted(word) || quoted(schema) && quoted(table)
}

// TestAsk: a refused question says nothing, and an error ends it.
func TestAsk(t *testing.T) {
	met, err := MySQL.Ask(func(question string, add func(name, text string)) error {
		if question == proxied {
			add(question, "(ProxySQL)")
		} else {
			add("Version", "10.11.6-MariaDB")
			add("wsrep_provider_name", "Galera")
		}
		return nil
	})
	testkit.Must(t, err)
	var names []string
	for _, p := range met.Products {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, ", "); got != "MariaDB, a Galera cluster, ProxySQL" || met.Said != "10.11.6-MariaDB" {
		t.Errorf("met %s, which says %q", got, met.Said)
	}
	if p := met.Refusing(OfStore); p == nil || p.Name != "a Galera cluster" {
		t.Errorf("refusing %+v", p)
	}
	if _, err := PostgreSQL.Ask(func(string, func(name, text string)) error { return os.ErrDeadlineExceeded }); err != os.ErrDeadlineExceeded {
		t.Errorf("an ask that fails: %v", err)
	}
}

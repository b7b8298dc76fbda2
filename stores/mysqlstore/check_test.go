package mysqlstore

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// leastRights is what the README says a user needs.
const leastRights = `GRANT SELECT, INSERT, UPDATE, DELETE ON app.@key TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.@holder TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.@waiter TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.@progress TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.@record TO app;
GRANT SELECT, UPDATE ON app.@meta TO app;`

// TestCheck: what is wrong with a server's set-up is found, and nothing else.
func TestCheck(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{BinaryLog: true, MaxConnections: 40})
	const dangerous, advice = store.SeverityDangerous, store.SeverityAdvice
	do := func(text string) func(testing.TB, sqltest.Store) {
		return func(_ testing.TB, s sqltest.Store) { server.Query(s.(*Store).names.sql(text)) }
	}
	sqltest.Check(t, server, map[string]sqltest.Setup{
		"sound": {},
		"read-only": {
			Undo:  []string{"SET GLOBAL read_only = 0"},
			Store: do("SET GLOBAL read_only = 1"),
			Finds: sqltest.Found("read-only", dangerous, "read_only"),
		},
		"no flush": {
			Do:    []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 0"},
			Undo:  []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 1"},
			Finds: sqltest.Found("durability", dangerous, "is 0"),
		},
		"no sync": {
			Do:    []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 2"},
			Undo:  []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 1"},
			Finds: sqltest.Found("durability", advice, "is 2"),
		},
		"binary log": {
			Do:    []string{"SET GLOBAL sync_binlog = 0"},
			Undo:  []string{"SET GLOBAL sync_binlog = 1"},
			Finds: sqltest.Found("binary-log", advice, "sync_binlog is 0"),
		},
		"packet": {
			Do:    []string{"SET GLOBAL max_allowed_packet = 1048576"},
			Undo:  []string{"SET GLOBAL max_allowed_packet = 16777216"},
			Finds: sqltest.Found("packet", advice, "1048576"),
		},
		"clock set back": {
			Store: do("UPDATE @meta SET fence=" + clock + "+3630000000"),
			Finds: sqltest.Found("clock", dangerous, "1h0m"),
		},
		"missing index": {
			Store: do("ALTER TABLE @waiter DROP KEY waiter_token"),
			Finds: sqltest.Found("tables", dangerous, "waiter_token"),
		},
		"other engine": {
			Store: do("ALTER TABLE @progress ENGINE=MyISAM"),
			Finds: sqltest.Found("tables", dangerous, "progress (MyISAM)"),
		},
		"other version": {
			Store: do("UPDATE @meta SET version=0"),
			Finds: sqltest.Found("tables", dangerous, "version 0"),
		},
		"no tables": {
			Store: func(_ testing.TB, s sqltest.Store) { drop(server, s.(*Store).names.prefix) },
			Finds: sqltest.Found("tables", dangerous, "version 0"),
		},
		"connections": {
			Store: func(t testing.TB, _ sqltest.Store) {
				db := openDB(t, server.URL())
				for range 36 {
					conn, err := db.Conn(t.Context())
					testkit.Must(t, err)
					t.Cleanup(func() { _ = conn.Close() })
				}
			},
			Finds: sqltest.Found("connections", advice, "of 40 connections are in use"),
		},
	}, func(t *testing.T) sqltest.Store {
		return open(t, server.URL(), &Options{Prefix: testkit.Own(), PruneEvery: -1})
	})
}

// TestEveryRight: what the README says a user needs is enough, on both kinds of servers, and what may
// not be looked at is said. A user that lacks one of the rights cannot open the store, and the error
// and Check name what it lacks.
func TestEveryRight(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		names := open(t, server.URL(), &Options{Prefix: testkit.Own()}).names
		user := names.prefix + "@'127.0.0.1'"
		server.Query("CREATE USER " + user + " IDENTIFIED BY 'secret'")
		server.Query(strings.ReplaceAll(names.sql(leastRights), "TO app", "TO "+user))
		url := strings.Replace(server.URL(), "root@", names.prefix+":secret@", 1)
		start := func() (*Store, error) {
			return Open(t.Context(), url, &Options{Prefix: names.prefix, Migrate: true, PruneEvery: -1})
		}
		able, err := start()
		testkit.Must(t, err)
		defer able.Close()
		sqltest.Work(t, able)
		if _, err := able.Prune(t.Context(), 0); err != nil {
			t.Error(err)
		}
		got, err := able.Check(t.Context())
		testkit.Must(t, err)
		if len(got) == 0 || got[len(got)-1].Severity != store.SeverityUnchecked || got[len(got)-1].Name != "transactions" {
			t.Errorf("found %+v, want that transactions are unchecked", got)
		}
		for _, table := range tables {
			for _, verb := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
				if table == "meta" && (verb == "INSERT" || verb == "DELETE") {
					continue
				}
				right := verb + " ON app." + names.table(table)
				server.Query("REVOKE " + right + " FROM " + user)
				sqltest.Lacks(t, able, ErrUnauthorized, right, names.table(table), start)
				server.Query("GRANT " + right + " TO " + user)
			}
		}
	})
}

// answers are what a product says for its signs, where a sign is a part of it, or any text.
var answers = map[product.Sign]string{
	{Asked: "version", Says: "MariaDB"}:                "10.11.6-MariaDB-0+deb12u1",
	{Asked: "version", Says: "TiDB"}:                   "8.0.11-TiDB-v8.5.6",
	{Asked: "version", Says: "-Vitess"}:                "8.0.40-Vitess",
	{Asked: "version", Says: "-vitess"}:                "8.0.23-vitess",
	{Asked: "version_comment", Says: "MySQL"}:          "MySQL Community Server - GPL",
	{Asked: "version_comment", Says: "Percona Server"}: "Percona Server (GPL), Release 28, Revision 47601f19",
	{Asked: "aurora_version"}:                          "3.05.2",
	{Asked: "memsql_version"}:                          "8.9.10",
}

// TestProducts: a product that only looks like MySQL is refused by its name before a key is taken,
// and Check names one that is not tested. Behind each of them is a MariaDB, which answers all but
// the questions about the product.
func TestProducts(t *testing.T) {
	t.Parallel()
	for _, p := range product.MySQL.Products {
		for _, sign := range p.Signs {
			t.Run(p.Name+", "+sign.Asked+sign.Says, func(t *testing.T) {
				t.Parallel()
				says := map[string]string{"version": "8.4.3", "version_comment": "MySQL Community Server - GPL"}
				says[sign.Asked] = sign.Says
				if text, ok := answers[sign]; ok {
					says[sign.Asked] = text
				}
				o := &Options{Prefix: testkit.Own()}
				url := disguise(t, says)
				sqltest.Product(t, &p, ErrUnsupported,
					func() (*Store, error) { return Open(t.Context(), url, &Options{Prefix: o.Prefix, Migrate: true}) }, func() *Store { return open(t, url, o) })
				if rows := mariadb().Query("SHOW TABLES LIKE '" + o.Prefix + "%'"); p.Store == product.Refused && len(rows) > 0 {
					t.Errorf("tables were made: %v", rows)
				}
			})
		}
	}
}

// TestProductWithoutVariables: a product that refuses to set up a session is refused by its name, too.
func TestProductWithoutVariables(t *testing.T) {
	t.Parallel()
	says := map[string]string{"version": "5.7.32", "memsql_version": "8.9.10"}
	url := disguise(t, says, setUp, "SET SESSION no_such_variable=1")
	if s, err := Open(t.Context(), url, nil); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "SingleStore") {
		t.Errorf("Open: %v, %v", s, err)
	}
}

// TestUnknownProduct: a product that no table has runs, and Check says that nothing is known of it.
func TestUnknownProduct(t *testing.T) {
	t.Parallel()
	for want, says := range map[string]map[string]string{
		`"8.0.33-shiny", which dibs does not know`: {"version": "8.0.33-shiny", "version_comment": "ShinyDB"},
		"does not tell this user what it is":       nil,
	} {
		sqltest.FindsProduct(t, open(t, disguise(t, says), &Options{Prefix: testkit.Own()}), want, store.SeverityUnchecked)
	}
}

// disguise returns a URL of the server. A proxy in between asks it for the texts in says, by their
// names, in place of what is asked about the product. nil says that the questions are refused.
// changed are further statements, each with what replaces it.
func disguise(t *testing.T, says map[string]string, changed ...string) string {
	t.Helper()
	answer := slices.Repeat([]string{"SELECT nothing_of_this_name()"}, len(product.MySQL.Questions))
	if says != nil {
		var rows []string
		for name, text := range says {
			if name != product.MySQL.Questions[1] {
				rows = append(rows, fmt.Sprintf("SELECT '%s','%s'", name, text))
			}
		}
		all := strings.Join(rows, " UNION ALL ")
		answer = []string{all, "SELECT '" + says[product.MySQL.Questions[1]] + "'", all}
	}
	for i, question := range product.MySQL.Questions {
		changed = append(changed, question, answer[i])
	}
	instead := strings.NewReplacer(changed...)
	return mariadb().URLAt(testkit.Serve(t, func(_ int, c *net.TCPConn) { relay(c, instead) }))
}

// relay carries a connection to the server, whose packets have a length of 3 bytes and a number. A
// query is the first of a command, and begins with 3.
func relay(client net.Conn, instead *strings.Replacer) {
	server, err := net.Dial("tcp", mariadb().Addr())
	if err != nil {
		return
	}
	var back sync.WaitGroup
	defer back.Wait()
	defer server.Close()
	back.Go(func() { _, _ = io.Copy(client, server); client.Close() })
	for from := bufio.NewReader(client); ; {
		var head [4]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return
		}
		packet := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
		if _, err := io.ReadFull(from, packet); err != nil {
			return
		}
		if text, ok := bytes.CutPrefix(packet, []byte{3}); ok && head[3] == 0 {
			packet = append([]byte{3}, instead.Replace(string(text))...)
		}
		whole := binary.LittleEndian.AppendUint32(nil, uint32(len(packet))|uint32(head[3])<<24)
		if _, err := server.Write(append(whole, packet...)); err != nil {
			return
		}
	}
}

//go:build unix

package servertest

import (
	"net"
	"reflect"
	"strings"
	"testing"
)

func TestPostgresRestart(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		options *PostgresOptions
		end     func(*PostgresServer)
	}{
		{"stopped", nil, (*PostgresServer).Stop},
		{"without sync, killed", &PostgresOptions{NoSync: true, Password: "a'b\\c"}, (*PostgresServer).Kill},
		{"paused and killed", nil, func(s *PostgresServer) { s.Pause(); s.Kill() }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := Postgres(t, test.options)
			addr := s.Addr()
			s.Query("CREATE TABLE kept AS SELECT 1 AS n")
			// A connected client does not keep the server from its end.
			asked := make(chan error, 1)
			go func() {
				_, err := s.Do("SELECT pg_sleep(60)")
				asked <- err
			}()
			awaitRow(t, s, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'", "1")
			backends := family(t, s.proc)
			test.end(s)
			if err := <-asked; err == nil {
				t.Error("a connection outlived the server")
			}
			for _, pid := range backends {
				if !ended(pid) {
					t.Errorf("process %d of %v is left", pid, backends)
				}
			}
			if s.Running() {
				t.Error("runs after its end")
			}
			if _, err := net.Dial("tcp", addr); err == nil {
				t.Error("can be reached after its end")
			}
			s.Restart()
			if s.Addr() != addr {
				t.Errorf("at %s after a restart; was at %s", s.Addr(), addr)
			}
			s.Query("INSERT INTO kept VALUES (2)")
			s.Restart() // one that runs
			if got, want := s.Query("SELECT n FROM kept ORDER BY n"), [][]string{{"1"}, {"2"}}; !reflect.DeepEqual(got, want) {
				t.Errorf("the table holds %v; want %v", got, want)
			}
			s.RestartEmpty()
			if got := s.Query("SELECT to_regclass('kept')"); got[0][0] != "NULL" {
				t.Errorf("the table is there after an empty restart: %v", got)
			}
		})
	}
}

// family returns the processes of a server.
func family(t *testing.T, p *process) []int {
	t.Helper()
	children, err := descendants(p.pid)
	if err != nil || len(children) < 3 {
		t.Fatalf("the server's children are %v, %v", children, err)
	}
	return append(children, p.pid)
}

// asker is a server that can be asked by SQL.
type asker interface {
	Do(sql string) ([][]string, error)
}

// awaitRow waits until the answer is one row of one field.
func awaitRow(t *testing.T, s asker, sql, want string) {
	t.Helper()
	err := await(func() error {
		rows, err := s.Do(sql)
		if err == nil && (len(rows) != 1 || rows[0][0] != want) {
			err = &unexpected{rows}
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

type unexpected struct{ rows [][]string }

func (u *unexpected) Error() string { return strings.Join(u.rows[0], " ") }

func TestPostgresOptions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		options *PostgresOptions
		url     string // with HOST for the address
		want    map[string]string
	}{
		{"default", nil, "postgres://postgres@HOST/postgres?sslmode=disable", map[string]string{
			"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "100",
			"server_encoding": "UTF8", "lc_messages": "C",
		}},
		{"all", &PostgresOptions{NoSync: true, MaxConnections: 7, Password: "a/b @", Settings: []string{"lock_timeout = 500ms"}},
			"postgres://postgres:a%2Fb%20%40@HOST/postgres?sslmode=disable", map[string]string{
				"fsync": "off", "synchronous_commit": "on", "max_connections": "7", "lock_timeout": "500ms",
			}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := Postgres(t, test.options)
			if want := strings.Replace(test.url, "HOST", s.Addr(), 1); s.URL() != want {
				t.Errorf("URL is %s; want %s", s.URL(), want)
			}
			for name, want := range test.want {
				if got := s.Query("SHOW " + name)[0][0]; got != want {
					t.Errorf("%s is %s; want %s", name, got, want)
				}
			}
			// On TCP with the password, and only with that one.
			byTCP := s.psql("127.0.0.1", s.port)
			if got, err := byTCP.query("postgres", "SELECT 1"); err != nil || got[0][0] != "1" {
				t.Errorf("on TCP: %v, %v", got, err)
			}
			byTCP.env = []string{"PGPASSWORD=wrong"}
			_, err := byTCP.query("postgres", "SELECT 1")
			if refused := strings.Contains(errorText(err), "password authentication failed"); refused != (s.options.Password != "") {
				t.Errorf("with a wrong password: %v", err)
			}
		})
	}
}

func TestPostgresPause(t *testing.T) {
	t.Parallel()
	s := Postgres(t, &PostgresOptions{NoSync: true})
	s.Query("CREATE TABLE word ()")
	for range 2 { // again, and twice in a row
		asked := make(chan error, 1)
		go func() {
			_, err := s.Do("DO 'BEGIN WHILE NOT EXISTS (SELECT FROM word) LOOP PERFORM pg_sleep(0.01); END LOOP; END'")
			asked <- err
		}()
		awaitRow(t, s, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'", "1")
		s.Pause()
		s.Pause()
		if !s.Running() {
			t.Error("does not run while paused")
		}
		for _, pid := range family(t, s.proc) {
			if !stopped(pid) {
				t.Errorf("process %d has not stopped", pid)
			}
		}
		if len(asked) > 0 {
			t.Error("a paused server answered")
		}
		s.Continue()
		s.Query("INSERT INTO word DEFAULT VALUES")
		if err := <-asked; err != nil {
			t.Errorf("after it went on: %v", err)
		}
		s.Query("TRUNCATE word")
	}
}

func BenchmarkPostgresStart(b *testing.B) {
	for b.Loop() {
		scope := NewScope()
		Postgres(scope, nil)
		scope.Close()
	}
}

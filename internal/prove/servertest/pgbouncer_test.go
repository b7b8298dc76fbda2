//go:build nightly && unix

package servertest

import (
	"strings"
	"testing"
)

func TestPgBouncer(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		password string
		options  *PgBouncerOptions
		// moves says that two transactions of one session may have two
		// connections to the server.
		moves bool
	}{
		{"default", "", nil, true},
		{"transaction mode, password", "a'b\"c\\", &PgBouncerOptions{Mode: "transaction", PoolSize: 3}, true},
		{"session mode", "secret", &PgBouncerOptions{Mode: "session"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := Postgres(t, &PostgresOptions{NoSync: true, Password: test.password})
			s := PgBouncer(t, server, test.options)
			if s.URL() != server.URLAt(s.Addr()) || s.Addr() == server.Addr() {
				t.Errorf("URL is %s; that of the server is %s", s.URL(), server.URL())
			}
			if got := s.Query("SELECT inet_server_port()")[0][0]; got != server.port.String() {
				t.Errorf("the server has port %s; want %s", got, server.port)
			}
			// Another user, which is not in the pooler's file.
			server.Query("CREATE ROLE app LOGIN PASSWORD 'other'")
			app := server.psql("127.0.0.1", s.port)
			app.args = append(app.args, "-U", "app")
			app.env = []string{"PGPASSWORD=other"}
			if got, err := app.query("postgres", "SELECT current_user"); err != nil || got[0][0] != "app" {
				t.Errorf("the user app: %v, %v", got, err)
			}
			app.env = []string{"PGPASSWORD=wrong"}
			if _, err := app.query("postgres", "SELECT 1"); (err == nil) != (test.password == "") {
				t.Errorf("with a wrong password: %v", err)
			}
			if moved := moves(t, s); moved != test.moves {
				t.Errorf("a session moves between connections: %v; want %v", moved, test.moves)
			}
			if test.options != nil && test.options.PoolSize != 0 {
				for name, want := range map[string]string{"default_pool_size": "3", "max_client_conn": "1000"} {
					if got := config(s, name); got != want {
						t.Errorf("%s is %q; want %q", name, got, want)
					}
				}
			}
		})
	}
}

// config returns a setting of the pooler.
func config(s *PgBouncerServer, name string) string {
	for _, row := range s.Console("SHOW CONFIG") {
		if row[0] == name {
			return row[1]
		}
	}
	return ""
}

// moves reports whether the pooler lends the connection of a session that is
// between two transactions to another client.
func moves(t *testing.T, s *PgBouncerServer) bool {
	t.Helper()
	mode := config(s, "pool_mode")
	// psql has several -c share a session, one transaction each.
	c := s.backend.psql("127.0.0.1", s.port)
	out, err := c.run("-d", "postgres", "-c", "SET dibs.mark = 'here'", "-c", "SELECT current_setting('dibs.mark')")
	if err != nil || strings.TrimSpace(out) != "here" {
		t.Errorf("in %s mode a lone session has %q, %v", mode, out, err)
	}
	// What it set is still there for the next one, unless the pooler resets
	// the connections of sessions that have ended.
	rows := s.Query("SELECT current_setting('dibs.mark', true)")
	return rows[0][0] == "here"
}

func TestPgBouncerLife(t *testing.T) {
	t.Parallel()
	server := Postgres(t, &PostgresOptions{NoSync: true})
	s := PgBouncer(t, server, &PgBouncerOptions{Settings: []string{"server_login_retry = 0.1"}})
	server.Query("CREATE TABLE kept AS SELECT 1 AS n")
	for name, end := range map[string]func(){
		"stopped":           s.Stop,
		"killed":            s.Kill,
		"paused and killed": func() { s.Pause(); s.Kill() },
	} {
		end()
		if _, err := s.Do("SELECT 1"); !strings.Contains(errorText(err), "Connection refused") {
			t.Errorf("%s: %v", name, err)
		}
		s.Restart()
		if got := s.Query("SELECT n FROM kept"); got[0][0] != "1" {
			t.Errorf("%s and started: %v", name, got)
		}
	}
	asked := make(chan error, 1)
	s.Pause()
	go func() {
		_, err := s.Do("INSERT INTO kept VALUES (2)")
		asked <- err
	}()
	if len(asked) > 0 {
		t.Error("a paused pooler answers")
	}
	if got := server.Query("SELECT count(*) FROM kept"); got[0][0] != "1" {
		t.Errorf("went through a paused pooler: %v", got)
	}
	s.Continue()
	if err := <-asked; err != nil {
		t.Errorf("after it went on: %v", err)
	}
	// It finds its server again.
	server.Kill()
	server.Restart()
	awaitRow(t, s, "SELECT count(*) FROM kept", "2")
}

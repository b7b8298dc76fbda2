//go:build unix

package servertest

import (
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestMariaDBRestart(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		options *MariaDBOptions
		end     func(*MariaDBServer)
	}{
		{"stopped", nil, (*MariaDBServer).Stop},
		{"binary log, killed", &MariaDBOptions{BinaryLog: true}, (*MariaDBServer).Kill},
		{"without sync, paused and killed", &MariaDBOptions{NoSync: true, Password: "a'b\\c"}, func(s *MariaDBServer) { s.Pause(); s.Kill() }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := MariaDB(t, test.options)
			addr := s.Addr()
			s.Query("CREATE TABLE kept AS SELECT 1 AS n")
			// A connected client does not keep the server from its end.
			asked := make(chan error, 1)
			go func() {
				_, err := s.Do("DO SLEEP(60); SELECT NO_SUCH_FUNCTION()")
				asked <- err
			}()
			awaitRow(t, s, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'", "1")
			test.end(s)
			if err := <-asked; err == nil {
				t.Error("a connection outlived the server")
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
			if got := s.Query("SHOW TABLES"); got != nil {
				t.Errorf("tables after an empty restart: %v", got)
			}
		})
	}
}

func TestMariaDBOptions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		options  *MariaDBOptions
		url, dsn string // with HOST for the address
		want     map[string]string
	}{
		{"default", nil, "mysql://root@HOST/app", "root@tcp(HOST)/app", map[string]string{
			"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "1", "log_bin": "0",
			"max_connections": "151", "character_set_server": "utf8mb4",
		}},
		{"all", &MariaDBOptions{NoSync: true, BinaryLog: true, MaxConnections: 17, Password: "a/b @", Settings: []string{"innodb_lock_wait_timeout = 5"}},
			"mysql://root:a%2Fb%20%40@HOST/app", "root:a/b @@tcp(HOST)/app", map[string]string{
				"innodb_flush_log_at_trx_commit": "2", "log_bin": "1", "sync_binlog": "0", "binlog_format": "ROW",
				"max_connections": "17", "innodb_lock_wait_timeout": "5",
			}},
		{"binary log", &MariaDBOptions{BinaryLog: true}, "mysql://root@HOST/app", "root@tcp(HOST)/app", map[string]string{
			"innodb_flush_log_at_trx_commit": "1", "log_bin": "1", "sync_binlog": "1",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := MariaDB(t, test.options)
			if want := strings.Replace(test.url, "HOST", s.Addr(), 1); s.URL() != want {
				t.Errorf("URL is %s; want %s", s.URL(), want)
			}
			if want := strings.Replace(test.dsn, "HOST", s.Addr(), 1); s.DSN() != want {
				t.Errorf("DSN is %s; want %s", s.DSN(), want)
			}
			for name, want := range test.want {
				if got := s.Query("SELECT @@" + name)[0][0]; got != want {
					t.Errorf("%s is %s; want %s", name, got, want)
				}
			}
			// On TCP with the password, and only with that one.
			byTCP := s.client
			byTCP.args = []string{"--no-defaults", "--protocol=TCP", "--host=127.0.0.1", "--port=" + s.port.String(), "--user=root", "--database=app"}
			byTCP.env = []string{"MYSQL_PWD=" + s.options.Password}
			if _, err := byTCP.run("--execute=CREATE TABLE own (n INT)"); err != nil {
				t.Errorf("on TCP: %v", err)
			}
			byTCP.env = []string{"MYSQL_PWD=wrong"}
			if _, err := byTCP.run("--execute=SELECT 1"); !strings.Contains(errorText(err), "Access denied") {
				t.Errorf("with a wrong password: %v", err)
			}
		})
	}
}

func TestMariaDBPause(t *testing.T) {
	t.Parallel()
	s := MariaDB(t, &MariaDBOptions{NoSync: true})
	s.Pause()
	asked := make(chan error, 1)
	go func() {
		_, err := s.Do("CREATE TABLE made (n INT)")
		asked <- err
	}()
	if !s.Running() || !stopped(s.proc.pid) {
		t.Error("does not run, or has not stopped")
	}
	if len(asked) > 0 {
		t.Error("a paused server answered")
	}
	s.Continue()
	if err := <-asked; err != nil {
		t.Errorf("after it went on: %v", err)
	}
	s.Query("SELECT * FROM made")
}

// A server that ends with its owner leaves nothing.
func TestMariaDBLeavesNothing(t *testing.T) {
	t.Parallel()
	scope := NewScope()
	s := MariaDB(scope, &MariaDBOptions{NoSync: true})
	s.Pause()
	scope.Close()
	if !ended(s.proc.pid) {
		t.Error("its process is left")
	}
	if _, err := os.Stat(s.folder.path); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
}

func BenchmarkMariaDBStart(b *testing.B) {
	for b.Loop() {
		scope := NewScope()
		MariaDB(scope, nil)
		scope.Close()
	}
}

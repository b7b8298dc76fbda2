//go:build nightly && unix

package servertest

import (
	"reflect"
	"strings"
	"testing"
)

func TestMySQL(t *testing.T) {
	t.Parallel()
	s := MariaDB(t, &MariaDBOptions{MySQL: true, Password: "a'b\\c"})
	if got := s.Query("SELECT @@version_comment")[0][0]; strings.Contains(got, "MariaDB") {
		t.Errorf("it is %s", got)
	}
	if got, want := s.Query("SELECT @@innodb_flush_log_at_trx_commit, @@log_bin"), [][]string{{"1", "0"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("it syncs %v; want %v", got, want)
	}
	s.Query("CREATE TABLE kept AS SELECT NULL AS a, '' AS b")
	s.Kill()
	s.Restart()
	s.Pause()
	s.Continue()
	if got, want := s.Query("SELECT * FROM kept"), [][]string{{"NULL", ""}}; !reflect.DeepEqual(got, want) {
		t.Errorf("after a restart there is %v; want %v", got, want)
	}
}

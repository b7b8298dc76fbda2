//go:build nightly && unix

package servertest

import "testing"

func TestValkey(t *testing.T) {
	t.Parallel()
	s := Redis(t, &RedisOptions{Valkey: true, Persistence: AOF})
	if got := s.Info("server_name"); got != "valkey" {
		t.Errorf("it is %q", got)
	}
	s.Must("SET", "key", "value")
	s.Kill()
	s.Restart()
	if got := s.Must("GET", "key"); got != "value" {
		t.Errorf("the key is %v after a restart", got)
	}
}

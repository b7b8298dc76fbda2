//go:build unix

package servertest

import (
	"testing"
)

func TestRedisRestart(t *testing.T) {
	tests := []struct {
		name        string
		persistence Persistence
		end         func(*RedisServer)
		kept        bool
	}{
		{"none, stopped", NoPersistence, (*RedisServer).Stop, false},
		{"RDB, stopped", RDB, (*RedisServer).Stop, true},
		{"RDB, killed", RDB, (*RedisServer).Kill, false},
		{"AOF, killed", AOF, (*RedisServer).Kill, true},
		{"AOF each second, killed", AOFEverySecond, (*RedisServer).Kill, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := Redis(t, &RedisOptions{Persistence: test.persistence})
			addr := s.Addr()
			s.Must("SET", "key", "value")
			test.end(s)
			if s.Running() {
				t.Fatal("runs after its end")
			}
			if _, err := s.Do("PING"); err == nil {
				t.Fatal("answers after its end")
			}
			s.Restart()
			if s.Addr() != addr {
				t.Errorf("at %s after a restart; was at %s", s.Addr(), addr)
			}
			if got := s.Must("EXISTS", "key"); got != count(test.kept) {
				t.Errorf("EXISTS says %v after the restart; want %v", got, count(test.kept))
			}
			s.RestartEmpty()
			if got := s.Must("DBSIZE"); got != int64(0) {
				t.Errorf("%v keys after an empty restart", got)
			}
		})
	}
}

// count is how many keys EXISTS counts.
func count(there bool) any {
	if there {
		return int64(1)
	}
	return int64(0)
}

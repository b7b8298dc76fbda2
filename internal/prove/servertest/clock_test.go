//go:build nightly && linux

package servertest

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// A clock is stepped for the servers that have it, back and forth, while they run, and
// for no other process.
func TestClock(t *testing.T) {
	clock := NewClock(t)
	seconds := func(rows [][]string, err error) (int64, error) {
		if err != nil {
			return 0, err
		}
		s, err := strconv.ParseFloat(rows[0][0], 64)
		return int64(s), err
	}
	redis := func(s *RedisServer) func() (int64, error) {
		return func() (int64, error) {
			answer, err := s.Do("TIME")
			if err != nil {
				return 0, err
			}
			return strconv.ParseInt(answer.([]any)[0].(string), 10, 64)
		}
	}
	postgres := Postgres(t, &PostgresOptions{NoSync: true, Clock: clock})
	mariadb := MariaDB(t, &MariaDBOptions{NoSync: true, Clock: clock})
	etcd := Etcd(t, &EtcdOptions{Clock: clock})
	for _, test := range []struct {
		name string
		now  func() (int64, error)
		has  bool
	}{
		{"redis", redis(Redis(t, &RedisOptions{Clock: clock})), true},
		{"valkey", redis(Redis(t, &RedisOptions{Valkey: true, Clock: clock})), true},
		{"postgres", func() (int64, error) {
			return seconds(postgres.Do("SELECT extract(epoch FROM clock_timestamp())"))
		}, true},
		{"mariadb", func() (int64, error) { return seconds(mariadb.Do("SELECT UNIX_TIMESTAMP(SYSDATE())")) }, true},
		{"etcd", func() (int64, error) {
			resp, err := asking.Get(etcd.URL() + "/version")
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			at, err := http.ParseTime(resp.Header.Get("Date"))
			return at.Unix(), err
		}, true},
		{"a server without it", redis(Redis(t, nil)), false},
	} {
		for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 0} {
			testkit.Must(t, clock.Step(ahead))
			got, err := test.now()
			if err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			want := time.Now()
			if test.has {
				want = want.Add(ahead)
			}
			if off := want.Sub(time.Unix(got, 0)); off.Abs() > time.Minute {
				t.Errorf("%s, with the clock %v ahead: the time is %v off", test.name, ahead, off)
			}
		}
	}
}

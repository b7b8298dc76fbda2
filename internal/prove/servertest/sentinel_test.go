//go:build nightly && unix

package servertest

import (
	"strings"
	"testing"
)

func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*SentinelOptions{
		"default":            nil,
		"password, TLS, two": {Replicas: 2, Redis: &RedisOptions{Password: `a "b`, TLS: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := RedisSentinel(t, o)
			if len(s.Sentinels()) != 3 {
				t.Fatalf("%d sentinels; want 3", len(s.Sentinels()))
			}
			if at := strings.Join(s.Addrs(), ","); !strings.HasSuffix(s.URL(), at+"/"+s.Name()) {
				t.Errorf("URL is %s; want the sentinels %s and the name %s in it", s.URL(), at, s.Name())
			}
			old := s.Master()
			if old != s.Servers()[0] {
				t.Errorf("the master is %s; want the first", old.name)
			}
			old.Must("SET", "key", "value")
			for _, replica := range s.Servers()[1:] {
				replica.AwaitReplica()
			}
			old.Kill()
			master := s.AwaitMaster(old)
			if got := master.Must("GET", "key"); got != "value" {
				t.Errorf("the new master has %v", got)
			}
			master.Must("SET", "key", "more")
			// The old one comes back as a replica, which takes the sentinels a
			// moment.
			old.Restart()
			s.Await()
			if got := old.Must("GET", "key"); got != "more" {
				t.Errorf("the old master has %v", got)
			}
		})
	}
}

//go:build unix

package target

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// usurped is a Redis that others watch: when its master is silent for some time, they put a
// replica in its place, and the clients follow by themselves. The master is stopped and
// not killed, so that for some moments there are two: it goes on with what it had been sent
// before it hears that it is one no more.
type usurped struct {
	master func() *servertest.RedisServer
	next   func(after *servertest.RedisServer) *servertest.RedisServer
	whole  func()
}

var _ fault.Failover = (*usurped)(nil)

// silence is how long a master is silent before it counts as gone.
const silence = time.Second

// Sentinel starts a Redis with a replica and three sentinels that watch them. No wire can be
// put before it.
func Sentinel(owner servertest.Owner) *fault.Target {
	owner.Helper()
	s := servertest.RedisSentinel(owner, &servertest.SentinelOptions{
		DownAfter: silence, Redis: &servertest.RedisOptions{Persistence: servertest.AOF},
	})
	return &fault.Target{URL: s.URL(), Failover: &usurped{s.Master, s.AwaitMaster, s.Await}}
}

// Cluster starts a Redis Cluster of three masters with a replica each. No wire can be put
// before it.
func Cluster(owner servertest.Owner) *fault.Target {
	owner.Helper()
	c := servertest.RedisCluster(owner, &servertest.ClusterOptions{
		NodeTimeout: silence, Redis: &servertest.RedisOptions{Persistence: servertest.AOF},
	})
	key := ""
	return &fault.Target{URL: c.URL(), Failover: &usurped{
		master: func() *servertest.RedisServer {
			key = fmt.Sprint("slot", rand.N(1000)) // of any of the masters
			return c.MasterOf(key)
		},
		next:  func(after *servertest.RedisServer) *servertest.RedisServer { return c.AwaitMaster(key, after) },
		whole: c.Await,
	}}
}

// Lag does nothing: what a replica lacks is what the old master does when it wakes.
func (u *usurped) Lag() error { return nil }

// Promote stops the master until another has taken its place, and lets it go on. What it
// did beyond the point up to which the other had followed it is lost: so much the other
// finds out when it is asked to go on from there, which it cannot.
func (u *usurped) Promote() (addr string, behind int64, err error) {
	old := u.master()
	old.Pause()
	master := u.next(old)
	before, err := offset(master, "sync_partial_err")
	if err != nil {
		return "", 0, err
	}
	old.Continue()
	u.whole()
	after, err := offset(master, "sync_partial_err")
	return master.Addr(), after - before, err
}

// Rebuild does nothing: Promote has waited until the old master follows the new one.
func (u *usurped) Rebuild() error { return nil }

//go:build unix

package target

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// watched is a Redis that Sentinel or Cluster watches: they put a replica in the place of a
// silent master, and the clients follow by themselves. The master is stopped and not killed, so
// that there are two masters for a moment.
type watched struct {
	master func() *servertest.RedisServer
	next   func(after *servertest.RedisServer) *servertest.RedisServer
	whole  func()
	behind int64
}

var _ fault.Failover = (*watched)(nil)

// silence is after how long a silent master is replaced.
const silence = time.Second

// Sentinel starts a Redis with a replica and three sentinels. It has no wires.
func Sentinel(owner servertest.Owner) *fault.Target {
	owner.Helper()
	s := servertest.RedisSentinel(owner, &servertest.SentinelOptions{
		DownAfter: silence, Redis: &servertest.RedisOptions{Persistence: servertest.AOF},
	})
	return &fault.Target{URL: s.URL(), Failover: &watched{master: s.Master, next: s.AwaitMaster, whole: s.Await}}
}

// Cluster starts a Redis Cluster of three masters with a replica each. It has no wires.
func Cluster(owner servertest.Owner) *fault.Target {
	owner.Helper()
	c := servertest.RedisCluster(owner, &servertest.ClusterOptions{
		NodeTimeout: silence, Redis: &servertest.RedisOptions{Persistence: servertest.AOF},
	})
	key := ""
	return &fault.Target{URL: c.URL(), Failover: &watched{
		master: func() *servertest.RedisServer {
			key = fmt.Sprint("slot", rand.N(1000)) // of any of the masters
			return c.MasterOf(key)
		},
		next:  func(after *servertest.RedisServer) *servertest.RedisServer { return c.AwaitMaster(key, after) },
		whole: c.Await,
	}}
}

// Lag does nothing: the replica lacks what the old master does when it goes on.
func (u *watched) Lag() error { return nil }

// Promote stops the master until a replica has taken its place, and lets it go on. The old
// master then cannot resynchronize from where it was, because it did more than its replica had.
// The new master counts that.
func (u *watched) Promote(bool) (addr string, err error) {
	old := u.master()
	old.Pause()
	master := u.next(old)
	missed := func() (n int64) {
		if err == nil {
			n, err = strconv.ParseInt(master.Info("sync_partial_err"), 10, 64)
		}
		return n
	}
	before := missed()
	old.Continue()
	u.whole()
	u.behind = missed() - before
	return master.Addr(), err
}

// Rebuild only counts, because Promote has waited until the old master follows the new one.
func (u *watched) Rebuild() (behind int64, err error) { return u.behind, nil }

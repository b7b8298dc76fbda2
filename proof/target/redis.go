//go:build unix

package target

import (
	"fmt"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// Redis starts a Redis or a Valkey, and its replica. It sets persistence and the clock. Nil
// means the defaults. A kill of the process loses nothing that it acknowledged.
func Redis(owner servertest.Owner, o *servertest.RedisOptions) *fault.Target {
	owner.Helper()
	options := servertest.RedisOptions{}
	if o != nil {
		options = *o
	}
	clock := servertest.NewClock(owner)
	options.Persistence, options.Clock = servertest.AOF, clock
	options.Directives = append(options.Directives[:len(options.Directives):len(options.Directives)],
		fmt.Sprintf("maxclients %d", connections))
	start := func() *servertest.RedisServer { return servertest.Redis(owner, &options) }
	master := start()
	g := newGroup(owner, master, 1, start)
	return &fault.Target{URL: master.URL(), Server: g, Failover: g, Clock: clock, Durable: true}
}

// RedisReplicated starts a Redis with a replica, and a store that waits for it.
func RedisReplicated(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := Redis(owner, nil)
	t.URL, t.Clock, t.Synchronous = t.URL+"?replicas=1", nil, true
	return t
}

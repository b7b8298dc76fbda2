//go:build unix

package target

import (
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// MariaDB starts a MariaDB or a MySQL. It sets the clock, the number of connections and NoSync.
// Nil means the defaults. A kill loses nothing that was committed.
func MariaDB(owner servertest.Owner, o *servertest.MariaDBOptions) *fault.Target {
	owner.Helper()
	options := servertest.MariaDBOptions{}
	if o != nil {
		options = *o
	}
	clock := servertest.NewClock(owner)
	options.NoSync, options.MaxConnections, options.Clock = true, connections, clock
	s := servertest.MariaDB(owner, &options)
	return &fault.Target{URL: s.URL() + "?migrate=true", Server: s, Clock: clock, Durable: true}
}

// MariaDBSemiSynchronous starts a MariaDB with a semi-synchronous replica.
func MariaDBSemiSynchronous(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := mariadbGroup(owner, true)
	t.Synchronous = true
	return t
}

// MariaDBAsynchronous starts a MariaDB with a replica.
func MariaDBAsynchronous(owner servertest.Owner) *fault.Target {
	owner.Helper()
	return mariadbGroup(owner, false)
}

// mariadbGroup starts a MariaDB with a replica.
func mariadbGroup(owner servertest.Owner, semi bool) *fault.Target {
	owner.Helper()
	options := servertest.MariaDBOptions{NoSync: true, MaxConnections: connections, Replicas: true, SemiSync: semi}
	start := func() *servertest.MariaDBServer { return servertest.MariaDB(owner, &options) }
	primary := start()
	g := newGroup(owner, primary, 1, start)
	return &fault.Target{URL: primary.URL() + "?migrate=true", Server: g, Failover: g, Durable: true}
}

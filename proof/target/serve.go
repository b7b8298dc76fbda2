//go:build unix

package target

import (
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// Serve starts a dibs serve on a SQLite file. It has no memory of its own, so a kill loses
// nothing.
func Serve(owner servertest.Owner) *fault.Target {
	owner.Helper()
	s := servertest.DibsServe(owner, "")
	return &fault.Target{URL: s.URL(), Server: s, Durable: true}
}

// ServePair starts two dibs serve on one SQLite file. The clients know both.
func ServePair(owner servertest.Owner) *fault.Target {
	owner.Helper()
	first := servertest.DibsServe(owner, "")
	p := &servePair{both: []*servertest.DibsServer{first, servertest.DibsServe(owner, first.Store)}}
	return &fault.Target{URL: first.URL() + "," + p.both[1].Addr(), Failover: p, Synchronous: true}
}

// servePair is two servers of one store. A failover ends one of them for a moment.
type servePair struct {
	both []*servertest.DibsServer
	down *servertest.DibsServer
}

var _ fault.Failover = (*servePair)(nil)

// Lag does nothing: what one server acknowledges, the other one knows.
func (p *servePair) Lag() error { return nil }

// Promote ends one of the servers.
func (p *servePair) Promote(bool) (addr string, err error) {
	i := rand.IntN(2)
	p.down = p.both[i]
	p.down.Kill()
	return p.both[1-i].Addr(), nil
}

// Rebuild starts it again, after clients had to go to the other one.
func (p *servePair) Rebuild() (behind int64, err error) {
	time.Sleep(silence)
	p.down.Restart()
	return 0, nil
}

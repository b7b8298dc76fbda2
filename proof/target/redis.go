//go:build unix

package target

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/proof/fault"
)

// pair is a Redis and its replica. They change roles with each failover.
type pair struct {
	link *wire.Wire // from the replica to the master

	mu              sync.Mutex
	master, replica *servertest.RedisServer

	stays        bool  // the old master went on after the last failover
	wrote, heard int64 // by the old master at its end, and by its replica
}

var (
	_ fault.Server   = (*pair)(nil)
	_ fault.Failover = (*pair)(nil)
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
	p := &pair{master: servertest.Redis(owner, &options), replica: servertest.Redis(owner, &options)}
	var err error
	if p.link, err = wire.Open(p.master.Addr()); err == nil {
		owner.Cleanup(func() {
			if err := p.link.Close(); err != nil {
				owner.Logf("closing the wire of a replica: %v", err)
			}
		})
		err = p.follow()
	}
	if err != nil {
		owner.Fatalf("starting a replica: %v", err)
	}
	return &fault.Target{URL: p.master.URL(), Server: p, Failover: p, Clock: clock, Durable: true}
}

// RedisReplicated starts a Redis with a replica, and a store that waits for it.
func RedisReplicated(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := Redis(owner, nil)
	t.URL, t.Clock, t.Synchronous = t.URL+"?replicas=1", nil, true
	return t
}

// Kill ends the master at once.
func (p *pair) Kill() { p.first().Kill() }

// Restart starts the master again on its data.
func (p *pair) Restart() { p.first().Restart() }

// Pause stops the master.
func (p *pair) Pause() { p.first().Pause() }

// Continue lets the master go on.
func (p *pair) Continue() { p.first().Continue() }

func (p *pair) first() *servertest.RedisServer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.master
}

// Lag waits until the replica is in step, and then holds back what the master sends it.
func (p *pair) Lag() error {
	if err := p.inStep(); err != nil {
		return err
	}
	p.link.Set(wire.Trouble{Hold: true}, nil)
	return nil
}

// Promote makes the replica a master. The old master is killed first, unless it stays.
func (p *pair) Promote(stays bool) (addr string, err error) {
	if !stays {
		if p.wrote, err = offset(p.master, "master_repl_offset"); err != nil {
			return "", err
		}
		p.master.Kill()
	}
	p.stays = stays
	p.link.Set(wire.Trouble{Hold: true, Refuse: true}, nil)
	p.link.Reset() // what was on its way is lost
	if p.heard, err = offset(p.replica, "slave_repl_offset"); err == nil {
		_, err = p.replica.Do("REPLICAOF", "NO", "ONE")
	}
	if err != nil {
		return "", fmt.Errorf("promoting the replica: %w", err)
	}
	p.mu.Lock()
	p.master, p.replica = p.replica, p.master
	p.mu.Unlock()
	return p.master.Addr(), nil
}

// Rebuild makes the old master an empty replica.
func (p *pair) Rebuild() (behind int64, err error) {
	if p.stays {
		if p.wrote, err = offset(p.replica, "master_repl_offset"); err != nil {
			return 0, err
		}
	}
	p.link.Set(wire.Trouble{}, nil)
	p.link.Lead(p.master.Addr())
	p.replica.RestartEmpty()
	return p.wrote - p.heard, p.follow()
}

// follow makes the replica follow the master, and returns when it is in step.
func (p *pair) follow() error {
	host, port, err := net.SplitHostPort(p.link.Addr())
	if err != nil {
		return err
	}
	if _, err := p.replica.Do("REPLICAOF", host, port); err != nil {
		return err
	}
	return p.inStep()
}

// patience bounds waiting for a replica.
const patience = 30 * time.Second

// inStep waits until the replica has everything that the master had at the start of the call.
func (p *pair) inStep() error {
	wrote, err := offset(p.master, "master_repl_offset")
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		link, err := info(p.replica, "master_link_status")
		if err != nil {
			return err
		}
		heard, err := offset(p.replica, "slave_repl_offset")
		switch {
		case err == nil && link == "up" && heard >= wrote:
			return nil
		case time.Now().After(deadline):
			return errors.Join(fmt.Errorf("the replica does not get in step: its link is %q, and it has heard of %d bytes of %d", link, heard, wrote), err)
		}
	}
}

// offset returns a numeric field of a server's INFO.
func offset(s *servertest.RedisServer, field string) (int64, error) {
	value, err := info(s, field)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(value, 10, 64)
}

// info returns a field of a server's INFO, or "".
func info(s *servertest.RedisServer, field string) (string, error) {
	answer, err := s.Do("INFO", "everything")
	if err != nil {
		return "", err
	}
	text, ok := answer.(string)
	if !ok {
		return "", errors.New("INFO is no text")
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", nil
}

package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"

	"github.com/dibs-go/dibs/internal/backoff"
)

func failoverFaults() []*Fault {
	return []*Fault{
		{
			Name: "failover", Kind: Data, Forgets: true,
			About:    "the server is taken away, and a replica that has not heard of the last writes takes its place",
			Evidence: "a replica that was promoted and that lacks, by the servers' own counts, what its master had; if replication is synchronous, one that was promoted",
			gate:     serverGate, applies: needFailover, strike: failOver,
		},
		{
			Name: "split", Kind: Data, Forgets: true,
			About:    "the server is cut off from its replica, which takes its place; some workers go on with the old server for a while",
			Evidence: "an old server that did something, by its own count, that the new one does not have",
			gate:     serverGate, applies: needSplit, strike: split,
		},
	}
}

func needFailover(t *Target) error {
	if t.Failover == nil {
		return errors.New("the server has no replica of the run's own to take its place")
	}
	if findsServers(t.URL) {
		return nil
	}
	return needWires(t)
}

// findsServers reports whether the clients of the store find the new server by themselves.
func findsServers(storeURL string) bool {
	_, host, _ := around(storeURL)
	return strings.HasPrefix(storeURL, "redis+") || strings.Contains(host, ",")
}

func needSplit(t *Target) error {
	if err := needFailover(t); err != nil {
		return err
	}
	if len(t.Wires) < 2 {
		return errors.New("it takes two workers with wires: one for each server")
	}
	return nil
}

func failOver(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	// With synchronous replication nothing is acknowledged while the replica lags. So it does not
	// always lag then.
	if !t.Synchronous || r.IntN(2) == 0 {
		if err := t.Failover.Lag(); err != nil {
			return 0, err
		}
		_ = backoff.Sleep(ctx, t.spell(r))
	}
	addr, err := t.Failover.Promote(false)
	if err != nil {
		return 0, err
	}
	t.move(addr)
	behind, err := t.Failover.Rebuild()
	if err == nil && (behind > 0 || t.Synchronous) {
		hits = 1
	}
	return hits, err
}

// split leaves some workers, and not all, with the old server.
func split(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	if err := t.Failover.Lag(); err != nil {
		return 0, err
	}
	_ = backoff.Sleep(ctx, t.spell(r)/2)
	addr, err := t.Failover.Promote(true)
	if err != nil {
		return 0, err
	}
	n := 1 + r.IntN(len(t.Wires)-1)
	for _, i := range r.Perm(len(t.Wires))[:n] {
		t.Wires[i].Lead(addr)
	}
	_ = backoff.Sleep(ctx, 2*t.long(r))
	t.move(addr)
	behind, err := t.Failover.Rebuild()
	if err == nil && behind > 0 {
		hits = 1
	}
	return hits, err
}

// move leads all workers to the address that the server has since a failover.
func (t *Target) move(addr string) {
	t.mu.Lock()
	t.moved = addr
	t.mu.Unlock()
	for _, w := range t.Wires {
		if w.Target() != addr {
			w.Lead(addr)
		}
	}
}

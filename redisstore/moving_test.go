package redisstore

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestSlotIsMoved: while a slot goes from one server of a cluster to another, who
// asks for a key that is half there is told that nothing is known. Nothing is
// granted twice, and afterwards all is as it was.
func TestSlotIsMoved(t *testing.T) {
	cluster := servertest.RedisCluster(t, nil)
	s := open(t, cluster.URL(), nil)
	held, next := lock("k"), lock("k", queued)
	mustGrant(t, s, held)
	mustListen(t, s, next)

	state := s.names.state(held.Key)
	from := cluster.MasterOf(state)
	to := cluster.Nodes()[0]
	if to == from {
		to = cluster.Nodes()[1]
	}
	id := func(of *servertest.RedisServer) any { return of.Must("CLUSTER", "MYID") }
	slot := from.Must("CLUSTER", "KEYSLOT", state)
	to.Must("CLUSTER", "SETSLOT", slot, "IMPORTING", id(from))
	from.Must("CLUSTER", "SETSLOT", slot, "MIGRATING", id(to))
	host, port, err := net.SplitHostPort(to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	moves := []string{newName(s, held.Key, 'q'), newName(s, held.Key, 'w'), state, s.names.fence(s.names.group(held.Key))}
	for _, name := range moves[:3] {
		from.Must("MIGRATE", host, port, name, 0, 5000)
		for what, ask := range map[string]func(context.Context) error{
			"a claim": func(ctx context.Context) error {
				return s.Claim(ctx, []dibs.Claim{lock("k", answered)}, make([]dibs.Answer, 1))
			},
			"a waiter's claim": func(ctx context.Context) error {
				return s.Claim(ctx, []dibs.Claim{next}, make([]dibs.Answer, 1))
			},
			"a release": func(ctx context.Context) error {
				return s.Settle(ctx, []dibs.Settlement{{Key: held.Key, Token: held.Token}}, make([]error, 1))
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := ask(ctx)
			cancel()
			if !errors.Is(err, ErrReadOnly) {
				t.Errorf("after %q has moved, %s was answered %v; want ErrReadOnly", name, what, err)
			}
		}
	}
	from.Must("MIGRATE", host, port, moves[3], 0, 5000)
	for _, server := range []*servertest.RedisServer{to, from} {
		server.Must("CLUSTER", "SETSLOT", slot, "NODE", id(to))
	}
	if answer, err := renew(t, s, held); answer != nil || err != nil {
		t.Errorf("the renewal was answered %v, %v", answer, err)
	}
	mustSettle(t, s, held, dibs.Release)
	if a := mustGrant(t, s, next); a.Attempt != 1 {
		t.Errorf("it is attempt %d, want 1", a.Attempt)
	}
}

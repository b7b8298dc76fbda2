package redisstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Claim implements store.Store, in one round trip.
func (s *Store) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := s.claims(claims, answers)
	if err := s.run(ctx, all); err != nil {
		return err
	}
	s.refuseUnreplicated(ctx, all, claims, answers)
	s.subscribe(all, claims, answers)
	return nil
}

// claims makes the batches of claims.
func (s *Store) claims(claims []store.Claim, answers []store.Answer) []*batch {
	replicated := "0"
	if s.options.Replicas > 0 {
		replicated = "1"
	}
	all := s.batches(len(claims), verb{
		script: claimScript,
		head:   []string{s.names.sharded(), "", strconv.Itoa(s.options.MaxWaiters), replicated},
		key: func(i int) (store.Key, bool) {
			answers[i] = store.Answer{Err: claims[i].Validate()}
			return claims[i].Key, answers[i].Err == nil
		},
		answer: func(i int, r *reply) { readAnswer(&answers[i], r) },
		fail:   func(i int, err error) { answers[i].Err = err },
		// What answers must not be lost after it has answered.
		replicated: func(_ int, what byte) bool { return what == granted || what == done },
	})
	pushedTTL := s.options.pushedTTL
	if s.options.Replicas > 0 {
		pushedTTL = 0 // a grant must wait for the replicas
	}
	var owner store.Owner
	var text string // the owner's, which consecutive claims usually share
	for _, b := range all {
		b.args[1] = s.subscriber.channel(b.group)
		for _, i := range b.indexes {
			if text == "" || claims[i].Owner != owner {
				owner, text = claims[i].Owner, claims[i].Owner.String()
			}
			b.args = appendClaim(b.args, &claims[i], text, pushedTTL)
			if s.names.cluster && claims[i].MaxAge > 0 {
				b.keys = append(b.keys, s.names.record(claims[i].Key))
			}
		}
	}
	return all
}

// subscribe makes sure that this process listens for the waiters that have just joined a
// queue.
func (s *Store) subscribe(all []*batch, claims []store.Claim, answers []store.Answer) {
	for _, b := range all {
		var waiting []store.Token
		for _, i := range b.indexes {
			if claims[i].Mode == store.Queue && answers[i].State == store.Held {
				waiting = append(waiting, claims[i].Token)
			}
		}
		switch channel := b.args[1]; {
		case len(waiting) == 0 || channel == "":
		case channel == pending:
			s.subscriber.listen(b.group, waiting)
		default:
			s.subscriber.noteWait(b.group)
		}
	}
}

// The flags of a claim; its length up to the owner, without the length field; and the
// most bytes after the owner. See lua/state.lua.
const (
	simple     = 1
	answerable = 2
	claimLen   = 36
	tailLen    = 80
)

// appendClaim appends the argument of a claim. pushedTTL is the TTL of a pushed grant; 0:
// the claim must not be granted that way.
func appendClaim(args []string, c *store.Claim, owner string, pushedTTL time.Duration) []string {
	var flags, atMostOnce byte
	if c.Mode <= store.Queue && c.From.IsZero() {
		flags = simple
		if c.MaxAge > 0 {
			flags |= answerable
		}
	}
	if pushedTTL = min(pushedTTL, c.TTL); c.AtMostOnce {
		atMostOnce, pushedTTL = 1, 0
	}
	order := binary.BigEndian
	b := append(make([]byte, 4, 4+claimLen+store.MaxOwner+tailLen), flags, atMostOnce)
	b = append(order.AppendUint64(b, micros(c.TTL)), c.Token[:]...)
	b = order.AppendUint32(append(b, byte(c.Mode)), uint32(c.Permits))
	b = order.AppendUint32(b, uint32(c.Weight))
	b = append(append(b, byte(len(owner))), owner...)
	tail := order.AppendUint64(make([]byte, 0, tailLen), micros(pushedTTL))
	tail = append(order.AppendUint64(tail, micros(c.PlaceTTL)), c.Fingerprint[:]...)
	tail = order.AppendUint64(tail, micros(c.MaxAge))
	tail = append(order.AppendUint64(tail, micros(c.Grace)), c.From[:]...)
	b = append(b, bytes.TrimRight(tail, "\x00")...)
	order.PutUint32(b, uint32(len(b)-4))
	return append(args, string(b))
}

// The states in answers of lua/claim.lua.
const (
	failed = iota
	granted
	held
	free
	done
	mismatch
	unknown
)

func readAnswer(a *store.Answer, r *reply) {
	switch r.what {
	case granted:
		a.State = store.Granted
		a.Fence, a.Attempt = uint64(r.int()), 1
		if len(r.rest) > 0 {
			a.Attempt = int(r.int())
		}
		if len(r.rest) > 0 {
			a.Progress = r.bytes()
		}
	case held:
		a.State = store.Held
		a.Left, a.Ahead, a.Queued, a.Fence = r.duration(), int(r.int()), r.int() == 1, uint64(r.int())
	case free:
		a.State, a.Queued = store.Free, r.int() == 1
	case done:
		a.State = store.Done
		a.Record = store.Record{Age: r.duration(), Left: r.duration(), Data: r.bytes()}
	case mismatch:
		a.State = store.Mismatch
	case unknown:
		a.State, a.ID = store.Unknown, r.token().ID()
	default:
		r.err = fmt.Errorf("redisstore: the script's answer has the unknown state %d", r.what)
	}
}

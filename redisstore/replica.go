package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
)

// acknowledged sends each batch and waits until enough replicas
// have what it wrote. WAIT is about its own connection, so both go over one that
// is nobody else's meanwhile; on a cluster that is one for each batch, because
// each is another master's.
func (s *Store) acknowledged(ctx context.Context, all []*batch) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, len(all))
	for i, b := range all {
		_ = s.client.Dedicated(func(own rueidis.DedicatedClient) error {
			results[i] = pipeline(ctx, own, []*call{&b.call})[0]
			if !b.call.script.writes {
				return nil
			}
			n, err := own.Do(ctx, own.B().Arbitrary("WAIT", strconv.Itoa(s.options.Replicas),
				strconv.FormatInt(s.options.ReplicaWait.Milliseconds(), 10)).Build()).AsInt64()
			b.unacknowledged = err != nil || n < int64(s.options.Replicas)
			return nil
		})
	}
	return results
}

// refuseUnacknowledged undoes the grants that not enough replicas have. The
// undoing may be lost with them; then they run out.
func (s *Store) refuseUnacknowledged(ctx context.Context, all []*batch, claims []dibs.Claim, answers []dibs.Answer) {
	var undos []dibs.Settlement
	for _, b := range all {
		for _, i := range b.indexes {
			if !b.unacknowledged || answers[i].State != dibs.Granted {
				continue
			}
			answers[i] = dibs.Answer{Err: s.notReplicated()}
			undos = append(undos, dibs.Settlement{Key: claims[i].Key, Token: claims[i].Token, Outcome: dibs.Undo})
		}
	}
	if len(undos) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.Settle(ctx, undos, make([]error, len(undos)))
}

func (s *Store) notReplicated() error {
	return fmt.Errorf("%w within %v: %d have to (Options.Replicas)", ErrNotReplicated, s.options.ReplicaWait, s.options.Replicas)
}

package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
)

// sendAndWait sends batches to one server and waits until enough replicas have what lasts
// of what they wrote. WAIT is about its own connection, so both go over one that is nobody
// else's meanwhile.
func (s *Store) sendAndWait(ctx context.Context, all []*batch) (results []rueidis.RedisResult) {
	_ = s.client.Dedicated(func(own rueidis.DedicatedClient) error {
		results = pipeline(ctx, own, all)
		var lasting []*batch
		for i, b := range all {
			if b.anyLasts(&results[i]) {
				lasting = append(lasting, b)
			}
		}
		if len(lasting) > 0 {
			behind := s.await(ctx, own)
			for _, b := range lasting {
				b.behind = behind
			}
		}
		return nil
	})
	return results
}

// anyLasts reports whether one of a batch's answers counts only when replicas
// have what it says.
func (b *batch) anyLasts(result *rueidis.RedisResult) bool {
	answers, err := result.ToArray()
	if err != nil || b.lasts == nil || len(answers) != len(b.indexes) {
		return false
	}
	var r reading
	for j, i := range b.indexes {
		if r.read(&answers[j]); b.lasts(i, r.what) {
			return true
		}
	}
	return false
}

// await waits until enough replicas have what was written over the connection.
func (s *Store) await(ctx context.Context, own rueidis.DedicatedClient) error {
	patience := s.options.ReplicaWait
	if deadline, ok := ctx.Deadline(); ok {
		patience = max(min(patience, time.Until(deadline)*9/10), time.Millisecond)
	}
	n, err := own.Do(ctx, own.B().Arbitrary("WAIT", strconv.Itoa(s.options.Replicas),
		strconv.FormatInt(patience.Milliseconds(), 10)).Build()).AsInt64()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotReplicated, explain(err))
	case n < int64(s.options.Replicas):
		return fmt.Errorf("%w within %v: %d of the %d that have to (Options.Replicas)",
			ErrNotReplicated, patience.Round(time.Millisecond), n, s.options.Replicas)
	}
	return nil
}

// refuseBehind undoes the grants that not enough replicas have. The undoing may be
// lost with them; then they run out.
func (s *Store) refuseBehind(ctx context.Context, all []*batch, claims []dibs.Claim, answers []dibs.Answer) {
	var undos []dibs.Settlement
	for _, b := range all {
		for _, i := range b.indexes {
			if b.behind != nil && answers[i].Err == b.behind {
				undos = append(undos, dibs.Settlement{Key: claims[i].Key, Token: claims[i].Token, Outcome: dibs.Undo})
			}
		}
	}
	if len(undos) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.Settle(ctx, undos, make([]error, len(undos)))
}

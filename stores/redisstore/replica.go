package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/store"
)

// sendAndWait sends batches to one server and waits until enough replicas have the writes
// that must be replicated. WAIT covers the writes of its own connection, so both use a
// connection that no other call uses meanwhile.
func (s *Store) sendAndWait(ctx context.Context, all []*batch) (results []rueidis.RedisResult) {
	nodes, group := s.subscriber.nodes, all[0].group
	for range maxMoves {
		l := nodes.take(group)
		if l == nil {
			return slices.Repeat([]rueidis.RedisResult{rueidis.NewErrorResult(ErrUnreachable)}, len(all))
		}
		results = pipeline(ctx, l, all)
		failed := errorOf(results)
		if nodes.heard(group, l.addr, failed) {
			nodes.put(l)
			continue
		}
		var written []*batch
		for i, b := range all {
			if b.anyReplicated(&results[i]) {
				written = append(written, b)
			}
		}
		if len(written) > 0 {
			err := s.await(ctx, l)
			for _, b := range written {
				b.unreplicated = err
			}
			failed = errors.Join(failed, err)
		}
		if failed != nil {
			nodes.close(l)
		} else {
			nodes.put(l)
		}
		break
	}
	return results
}

// errorOf returns an error of one of the results, or nil.
func errorOf(results []rueidis.RedisResult) error {
	for i := range results {
		if err := results[i].Error(); err != nil {
			return err
		}
	}
	return nil
}

// anyReplicated reports whether one of the batch's answers counts only after enough
// replicas have it.
func (b *batch) anyReplicated(result *rueidis.RedisResult) bool {
	answers, err := result.ToArray()
	if err != nil || b.replicated == nil || len(answers) != len(b.indexes) {
		return false
	}
	var r reply
	for j, i := range b.indexes {
		if r.read(&answers[j]); b.replicated(i, r.what) {
			return true
		}
	}
	return false
}

// await waits until enough replicas have the writes of the connection.
func (s *Store) await(ctx context.Context, own rueidis.CoreClient) error {
	wait := s.options.ReplicaWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(min(wait, time.Until(deadline)*9/10), time.Millisecond)
	}
	n, err := own.Do(ctx, own.B().Arbitrary("WAIT", strconv.Itoa(s.options.Replicas),
		strconv.FormatInt(wait.Milliseconds(), 10)).Build()).AsInt64()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotReplicated, explain("WAIT", err))
	case n < int64(s.options.Replicas):
		return fmt.Errorf("%w within %v: %d of %d required (Options.Replicas)",
			ErrNotReplicated, wait.Round(time.Millisecond), n, s.options.Replicas)
	}
	return nil
}

// refuseUnreplicated undoes the grants that not enough replicas have. If the undo is lost
// with the master, the leases run out.
func (s *Store) refuseUnreplicated(ctx context.Context, all []*batch, claims []store.Claim, answers []store.Answer) {
	var undos []store.Settlement
	for _, b := range all {
		for _, i := range b.indexes {
			if b.unreplicated != nil && answers[i].Err == b.unreplicated {
				undos = append(undos, store.Settlement{Key: claims[i].Key, Token: claims[i].Token, Outcome: store.Undo})
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

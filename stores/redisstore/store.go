package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/store"
)

// Store is a store.Store on a Redis server, a Sentinel group or a Cluster. It is safe for
// concurrent use.
type Store struct {
	client     rueidis.Client
	options    Options
	names      namer
	subscriber *subscriber
	clocks     sync.Map // the *storekit.Clock of each server, for Check
	own        *dialer  // nil unless Open made the client
	closed     atomic.Bool
}

// New returns a Store that uses the client. The caller closes the client after the Store.
// New does not ask the server. The error names the wrong option.
func New(client rueidis.Client, o *Options) (*Store, error) {
	if client == nil {
		return nil, errors.New("redisstore: the client given to New is nil")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{client: client, options: options}
	s.names = namer{prefix: options.Prefix, cluster: client.Mode() == rueidis.ClientModeCluster}
	s.subscriber = newSubscriber(client, s.names)
	return s, nil
}

// Close ends the subscriptions, and closes the client if Open made it. Later calls return
// ErrClosed.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	if s.own != nil {
		s.own.leave()
	}
	s.subscriber.close()
	if s.own != nil {
		s.client.Close()
	}
	return nil
}

// Client returns the store's client, for the application's own commands. Close closes it
// if Open made it.
func (s *Store) Client() rueidis.Client { return s.client }

// Prefix returns Options.Prefix.
func (s *Store) Prefix() string { return s.options.Prefix }

// ErrClosed is returned by calls on a closed store.
var ErrClosed = errtype.New(errtype.Closed, "redisstore: the store is closed")

func (s *Store) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// Batching implements store.Batcher. On a Cluster every call goes alone, because the keys
// of a batch are rarely in one slot. So a batch would be as slow as the slowest server, and
// would fail with any of them.
func (s *Store) Batching() store.Batching {
	if s.names.cluster {
		return store.Batching{Direct: true}
	}
	return store.Batching{Size: 256, Parallel: 1}
}

// maxBatch bounds the elements of one script, because other clients wait while it runs.
const maxBatch = 64

// batch is the elements of one script call.
type batch struct {
	*verb
	group        string
	indexes      []int // in the caller's slice
	keys         []string
	args         []string
	unreplicated error // why its writes do not count
	failed       error // the error of the call
}

// A verb says how elements are sent and how their answers are read.
type verb struct {
	script *script
	head   []string                      // arguments before the elements'
	key    func(i int) (store.Key, bool) // false: the element already has its answer
	answer func(i int, r *reply)         // reads an element's answer
	fail   func(i int, err error)        // takes the error of one element
	// args appends the arguments of an element. May be nil.
	args func(args []string, i int) []string
	// replicated reports whether an answer counts only after enough replicas have it. May
	// be nil.
	replicated func(i int, what byte) bool
}

// batches makes batches of n elements, by the group of their key.
func (s *Store) batches(n int, v verb) []*batch {
	var all []*batch
	open := make(map[string]*batch, 1) // by group
	var b *batch
	for i := range n {
		k, ok := v.key(i)
		if !ok {
			continue
		}
		group := s.names.group(k)
		if b == nil || b.group != group {
			b = open[group]
		}
		if b == nil || len(b.indexes) == maxBatch {
			b = &batch{verb: &v, group: group}
			b.keys = append(make([]string, 0, min(n, maxBatch)+2), s.names.fence(group), s.names.listed(group))
			b.args = append(make([]string, 0, min(n, maxBatch)+len(v.head)), v.head...)
			b.indexes = make([]int, 0, min(n, maxBatch))
			all, open[group] = append(all, b), b
		}
		b.indexes = append(b.indexes, i)
		b.keys = append(b.keys, s.names.state(k))
		if v.args != nil {
			b.args = v.args(b.args, i)
		}
	}
	return all
}

// run sends all batches at once and reads the answers. An error is one of the call: its
// outcome is unknown.
func (s *Store) run(ctx context.Context, all []*batch) error {
	if len(all) == 0 {
		return nil
	}
	var failed error
	for i, result := range s.results(ctx, all) {
		all[i].take(&result)
		failed = errors.Join(failed, all[i].failed)
	}
	return failed
}

func (b *batch) take(result *rueidis.RedisResult) {
	answers, err := result.ToArray()
	if err == nil && len(answers) != len(b.indexes) {
		err = fmt.Errorf("redisstore: %d answers to %d elements", len(answers), len(b.indexes))
	}
	if err != nil {
		b.failed = explain("EVALSHA", err)
		return
	}
	r := new(reply)
	for j, i := range b.indexes {
		switch r.read(&answers[j]); {
		case r.err != nil:
			b.failed = errors.Join(b.failed, r.err)
		case r.what == failed:
			alone, err := element(string(r.rest))
			if alone != nil {
				b.fail(i, alone)
			}
			b.failed = errors.Join(b.failed, err)
		case b.unreplicated != nil && b.replicated(i, r.what):
			b.fail(i, b.unreplicated)
		default:
			b.answer(i, r)
			b.failed = errors.Join(b.failed, r.err)
		}
	}
}

// results sends the batches. On a cluster each goes alone, so that none waits for another
// server. The client writes those for one server at once.
func (s *Store) results(ctx context.Context, all []*batch) []rueidis.RedisResult {
	if !s.names.cluster || len(all) == 1 {
		return s.send(ctx, all)
	}
	results := make([]rueidis.RedisResult, len(all))
	var sending sync.WaitGroup
	for i := range all {
		sending.Go(func() { results[i] = s.send(ctx, all[i:i+1])[0] })
	}
	sending.Wait()
	return results
}

func (s *Store) send(ctx context.Context, all []*batch) []rueidis.RedisResult {
	if s.options.Replicas > 0 {
		return s.sendAndWait(ctx, all)
	}
	return pipeline(ctx, s.client, all)
}

// century bounds the durations sent to the server, because Lua counts in float64.
const century = 100 * 365 * 24 * time.Hour

// micros converts a duration to µs, rounded up.
func micros(d time.Duration) uint64 {
	return uint64((min(d, century) + time.Microsecond - 1) / time.Microsecond)
}

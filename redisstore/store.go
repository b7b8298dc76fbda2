package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
)

// Store is a dibs.Store on a Redis server, a Sentinel group or a Cluster. It is
// safe for concurrent use.
type Store struct {
	client     rueidis.Client
	options    Options
	names      namer
	subscriber *subscriber
	clocks     clocks  // that Check saw
	own        *dialer // of a client that Open made
	closed     atomic.Bool
}

// New returns a Store that uses the client, which the caller closes after the
// Store. It asks nothing of the server. The error names the option that is
// wrong.
func New(client rueidis.Client, o *Options) (*Store, error) {
	if client == nil {
		return nil, errors.New("redisstore: New was given no client")
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

// Close stops listening, and closes the client if Open made it. Calls after it
// return an error.
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

// Client returns the client that the store uses, for commands of your own. It is
// closed with the store if Open made it.
func (s *Store) Client() rueidis.Client { return s.client }

// Prefix returns how the names of the store's keys begin, see Options.Prefix.
func (s *Store) Prefix() string { return s.options.Prefix }

// ErrClosed is returned by calls on a closed store.
var ErrClosed = errors.New("redisstore: the store is closed")

func (s *Store) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// Batching implements dibs.Batcher. On a cluster every call goes by itself: a
// batch would be as slow as the slowest of its servers, and fail with any of
// them, and its elements are mostly in runs of their own anyway.
func (s *Store) Batching() dibs.Batching {
	if s.names.cluster {
		return dibs.Batching{Direct: true}
	}
	return dibs.Batching{Size: 256, Parallel: 1}
}

// most is how many elements one run of a script has: others wait while it runs.
const most = 64

// batch is elements that go into one run of a script.
type batch struct {
	*verb
	group   string
	indexes []int // of the elements in the caller's slice
	keys    []string
	args    []string
	behind  error // why it does not count, for want of replicas
	failed  error // of its call
}

// A verb says how elements are sent and how their answers are taken.
type verb struct {
	script *script
	head   []string                     // the arguments before those of the elements
	key    func(i int) (dibs.Key, bool) // false when the element has its answer
	answer func(i int, r *reading)      // takes an element's answer
	fail   func(i int, err error)       // takes why an element failed alone
	// args appends the arguments of an element. Nil for none.
	args func(args []string, i int) []string
	// lasts reports whether an answer counts only when replicas have what it says,
	// if the options want that. Nil for none that does.
	lasts func(i int, what byte) bool
}

// batches sorts n elements into batches by the group of their key.
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
		if b == nil || len(b.indexes) == most {
			b = &batch{verb: &v, group: group}
			b.keys = append(make([]string, 0, min(n, most)+1), s.names.fence(group))
			b.args = append(make([]string, 0, min(n, most)+len(v.head)), v.head...)
			b.indexes = make([]int, 0, min(n, most))
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

// run sends all batches at once and takes the elements' answers. The error is one
// of the call: nothing is known then.
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

// take gives the elements of a batch their answers.
func (b *batch) take(result *rueidis.RedisResult) {
	answers, err := result.ToArray()
	if err == nil && len(answers) != len(b.indexes) {
		err = fmt.Errorf("redisstore: %d answers to %d questions", len(answers), len(b.indexes))
	}
	if err != nil {
		b.failed = explain(err)
		return
	}
	r := new(reading)
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
		case b.behind != nil && b.lasts(i, r.what):
			b.fail(i, b.behind)
		default:
			b.answer(i, r)
			b.failed = errors.Join(b.failed, r.err)
		}
	}
}

// results sends the batches. On a cluster each goes by itself, so that none waits for
// another's server; the client makes one write of what goes to the same one.
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

// century is the longest time that is told the server, which counts in float64.
const century = 100 * 365 * 24 * time.Hour

// micros turns a duration into the server's unit, at least 1 if it is anything.
func micros(d time.Duration) uint64 {
	return uint64((min(d, century) + time.Microsecond - 1) / time.Microsecond)
}

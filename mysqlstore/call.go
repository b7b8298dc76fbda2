package mysqlstore

import (
	"context"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

const (
	// most is how many elements one transaction has, and mostBytes how many bytes of
	// records or progress, but for a single one that is larger.
	most      = 256
	mostBytes = 8 << 20
)

// call makes a call.
func (s *Store) call(ctx context.Context, c *engine.Call) error {
	caller := engine.Caller{Most: most, Bytes: min(mostBytes, s.packet/4), Busy: ErrLocked, Try: try, Stuck: s.stuck}
	return caller.Make(ctx, c)
}

// newCall is about those of n elements that validate finds no fault in. data is that of
// an element which may be large.
func newCall(n int, validate func(i int) (dibs.Key, error), fail func(int, error), data func(i int) []byte) *engine.Call {
	c := engine.NewCall(n, validate, fail)
	// A key comes several times in the text, in hexadecimal.
	c.Size = func(i int) int { return 2<<10 + 8*len(c.Keys[i]) + len(data(i)) }
	return c
}

// stuck returns which of the keys somebody else has locked.
func (s *Store) stuck(ctx context.Context, keys []string) (map[string]bool, error) {
	stuck := map[string]bool{}
	ask := s.script()
	var k string
	in(ask.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k"), keys)
	ask.asks(func(r *reading) { r.scan(&k); stuck[k] = true })
	in(ask.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k"), keys).raw(" ORDER BY k FOR UPDATE SKIP LOCKED")
	ask.asks(func(r *reading) { r.scan(&k); delete(stuck, k) })
	err := ask.on(ctx, s.back)
	return stuck, explain(err)
}

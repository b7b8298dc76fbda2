package fault

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// occupants take one connection of a server each.
var occupants = map[string]func(ctx context.Context, url string) (io.Closer, error){
	"redis": occupyRedis, "postgres": occupyPostgres, "mysql": occupyMySQL,
}

// mostConnections is how many connections a fault takes before it gives up.
const mostConnections = 20_000

// crowd is all the connections that were taken.
type crowd struct {
	target *Target

	mu     sync.Mutex
	taken  []io.Closer
	turned int // how often the crowd itself was turned away, at most
}

// exhaust takes all connections that are free, resets the workers', and takes those too.
func exhaust(ctx context.Context, t *Target, r *rand.Rand) (_ int, err error) {
	told := t.told(backends[t.backend()].crowded)
	w, err := t.meet(ctx)
	if err != nil {
		return 0, err
	}
	defer w.close()
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 6*look)
	defer cancel()
	refused, err := w.turnedAway(looking)
	if err != nil {
		return 0, err
	}

	some, release := t.wires(r)
	defer release()
	c := &crowd{target: t}
	defer c.leave()
	if err := c.fill(looking); err != nil {
		return 0, err
	}
	for _, wire := range some {
		wire.Reset()
	}
	holding, stop := context.WithCancel(ctx)
	defer stop()
	var takers sync.WaitGroup
	for range 4 {
		takers.Go(func() {
			for holding.Err() == nil {
				// Not given up in the middle: the server would turn it away all the same.
				if err := c.take(looking); err != nil {
					rest(holding, 2*time.Millisecond)
				}
			}
		})
	}
	t.lasting(ctx, t.spell(r), hit(told))
	stop()
	takers.Wait()

	// The server's own count, without those of the crowd, or what workers were told.
	counted := 0
	if refused >= 0 {
		now, err := w.turnedAway(looking)
		if err != nil {
			return 0, err
		}
		counted = now - refused - c.turned
	}
	c.leave()
	return max(counted, hits(told)), nil
}

// fill takes connections until there are no more.
func (c *crowd) fill(ctx context.Context) error {
	for range mostConnections {
		err := c.take(ctx)
		switch {
		case err == nil:
		case c.target.crowded(err):
			return nil
		default:
			return fmt.Errorf("taking the connection after %d: %w", len(c.taken), err)
		}
	}
	return fmt.Errorf("the server still has connections after %d; set its limit lower", mostConnections)
}

// take takes one more connection.
func (c *crowd) take(ctx context.Context) error {
	conn, err := occupants[c.target.backend()](ctx, c.target.url())
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.taken = append(c.taken, conn)
	} else {
		c.turned++ // however it was told
	}
	return err
}

// leave gives all connections back.
func (c *crowd) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.taken {
		_ = conn.Close() // the server may have ended it
	}
	c.taken = nil
}

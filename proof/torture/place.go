package torture

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pace"
)

// place reserves a place in a queue. Then it claims from it, once or twice, early or late,
// prolongs it, gives it up, or leaves it.
func (l *lane) place() {
	key := l.key("place")
	stands := l.TTL/2 + l.upTo(l.TTL)
	o := &dibs.PlaceOptions{Grace: l.TTL/10 + l.upTo(l.TTL/4)}
	p, _, err := l.client.Reserve(l.ctx, key, stands, o)
	if err != nil {
		return
	}
	l.crash("in its place")
	l.pause(l.upTo(l.TTL / 10))
	again := false
	switch n := l.r.IntN(20); {
	case n < 9:
		again = l.redeem(p, l.odds(6))
	case n < 12:
		_, _ = l.client.Prolong(l.ctx, p, stands, o)
		again = l.redeem(p, l.odds(6))
	case n < 15:
		again = l.twice(p)
	case n < 17:
		_ = l.client.CancelPlace(l.ctx, p)
	case n < 18:
		l.pause(stands + l.TTL/4) // too late, it is none any more
		l.redeem(p, l.odds(6))
	default: // the place is left
		return
	}
	if again {
		l.redeem(p, l.odds(2))
	}
	_ = l.client.CancelPlace(l.ctx, p)
}

// redeem claims from a place, and reports whether the place still stands after the lease has
// ended.
func (l *lane) redeem(p dibs.Place, try bool) (stands bool) {
	ctx, cancel := l.impatient()
	defer cancel()
	o := &dibs.RedeemOptions{AcquireOptions: dibs.AcquireOptions{Wait: l.wait(), Detach: true}}
	if l.odds(3) {
		o.Grace = l.TTL/10 + l.upTo(l.TTL/4)
	}
	redeem := l.client.Redeem
	if try {
		redeem, o.Wait = l.client.TryRedeem, 0
	}
	lease, err := redeem(ctx, p, o)
	if err != nil {
		return false
	}
	l.section(lease, 1, 1)
	return !l.leave(lease)
}

// twice redeems a place from two goroutines. One waits for the other.
func (l *lane) twice(p dibs.Place) (stands bool) {
	wait := l.wait()
	var both sync.WaitGroup
	both.Go(func() {
		lease, err := l.client.Redeem(l.ctx, p, &dibs.RedeemOptions{AcquireOptions: dibs.AcquireOptions{Wait: wait}})
		if err == nil {
			_ = pace.Sleep(lease.Context(), time.Millisecond)
			_ = lease.Release()
		}
	})
	stands = l.redeem(p, l.odds(6))
	both.Wait()
	return stands
}

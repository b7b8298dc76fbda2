package sim

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs"
)

// job reserves a place, or claims from a reserved one.
func (w *worker) job(ctx context.Context, k key) {
	asking, cancel := w.impatience(ctx)
	defer cancel()
	c := w.session.client
	stands := min(w.world.plan.ttl*2, placeStands)
	places := &dibs.PlaceOptions{}
	if w.chance(50) {
		places.Grace = w.world.plan.ttl / 2
	}
	if w.world.healed() || w.chance(20) {
		w.lock(ctx, k)
		return
	}
	if w.chance(50) {
		p, _, err := c.Reserve(asking, k.name, stands, places)
		if w.gate(); err == nil {
			w.offer(p)
		}
		return
	}
	p, ok := w.world.take(w.IntN(8))
	switch {
	case !ok:
		return
	case w.chance(10):
		_, _ = c.PlaceStatus(asking, p)
		w.offer(p)
		return
	case w.chance(5):
		_ = c.CancelPlace(ctx, p)
		return
	case w.chance(15):
		_, _ = c.Prolong(asking, p, stands, places)
		w.offer(p)
		return
	}
	if w.chance(5) {
		w.offer(p) // delivered twice
	}
	acquire, try := w.options(k)
	o := &dibs.RedeemOptions{AcquireOptions: *acquire, Grace: places.Grace}
	redeem := c.Redeem
	if try {
		redeem = c.TryRedeem
	}
	for {
		lease, err := redeem(asking, p, o)
		alive := w.gate()
		if err != nil {
			if !errors.Is(err, dibs.ErrClosed) {
				w.offer(p)
			}
			return
		}
		if !alive {
			return
		}
		job := key{name: p.Key.Name, kind: Job, permits: 1}
		w.section(lease, job)
		if w.settle(ctx, lease, job) {
			return
		}
		if w.chance(30) {
			w.offer(p) // delivered again
			return
		}
		redeem, o.Wait = c.TryRedeem, 0
	}
}

// offer leaves a place for any worker to redeem, or gives it up at the end.
func (w *worker) offer(p dibs.Place) {
	if w.world.offer(p) {
		return
	}
	if err := w.session.client.CancelPlace(context.Background(), p); errors.Is(err, dibs.ErrClosed) {
		w.world.keep()
	}
}

// placeStands is the longest time that a reserved place stands.
const placeStands = time.Second

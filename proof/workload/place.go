package workload

import (
	"context"
	"errors"
	"sync"

	"github.com/dibs-go/dibs"
)

// Places are reserved places, for any actor to redeem.
type Places struct {
	mu     sync.Mutex
	places []dibs.Place
	closed bool
	kept   bool
}

// Close takes all places away. None is offered any more.
func (p *Places) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.places, p.closed = nil, true
}

// Keep notes that a client was closed before it could give a place up.
func (p *Places) Keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = true
}

// Kept reports whether a place was reserved so late that it stands until it runs out.
func (p *Places) Kept() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

// offer leaves a place for any actor to redeem, and reports whether it did.
func (p *Places) offer(place dibs.Place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.places = append(p.places, place)
	}
	return !p.closed
}

// take takes an offered place.
func (p *Places) take(n int) (place dibs.Place, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.places) == 0 {
		return place, false
	}
	i := n % len(p.places)
	place = p.places[i]
	p.places = append(p.places[:i:i], p.places[i+1:]...)
	return place, true
}

// job reserves a place, or claims from a reserved one.
func (a *Actor) job(ctx context.Context, k Key) {
	asking, cancel := a.Impatience(ctx)
	defer cancel()
	places := &dibs.PlaceOptions{}
	if a.Chance(50) {
		places.Grace = a.TTL / 2
	}
	if a.Calm() || a.Chance(20) {
		a.Lock(ctx, k)
		return
	}
	if a.Chance(50) {
		p, _, err := a.Client.Reserve(asking, k.Name, a.PlaceTTL, places)
		if a.Gate(); err == nil {
			a.Crash("in its place")
			a.offer(p)
		}
		return
	}
	p, ok := a.Places.take(a.IntN(8))
	switch {
	case !ok:
		return
	case a.Chance(10):
		_, _ = a.Client.PlaceStatus(asking, p)
		a.offer(p)
		return
	case a.Chance(5):
		_ = a.Client.CancelPlace(ctx, p)
		return
	case a.Chance(15):
		_, _ = a.Client.Prolong(asking, p, a.PlaceTTL, places)
		a.offer(p)
		return
	}
	if a.Chance(5) {
		a.offer(p) // delivered twice
	}
	acquire, try := a.options(k)
	o := &dibs.RedeemOptions{AcquireOptions: *acquire, Grace: places.Grace}
	redeem := a.Client.Redeem
	if try {
		redeem = a.Client.TryRedeem
	}
	for {
		lease, err := redeem(asking, p, o)
		alive := a.Gate()
		if err != nil {
			if !errors.Is(err, dibs.ErrClosed) {
				a.offer(p)
			}
			return
		}
		if !alive {
			return
		}
		job := Key{Name: p.Key.Name, Kind: Job, Permits: 1}
		a.Section(lease, job)
		if a.settle(ctx, lease, job) {
			return
		}
		if a.Chance(30) {
			a.offer(p) // delivered again
			return
		}
		redeem, o.Wait = a.Client.TryRedeem, 0
	}
}

// offer leaves a place for any actor to redeem, or gives it up at the end.
func (a *Actor) offer(p dibs.Place) {
	if a.Places.offer(p) {
		return
	}
	if err := a.Client.CancelPlace(context.Background(), p); errors.Is(err, dibs.ErrClosed) {
		a.Places.Keep()
	}
}

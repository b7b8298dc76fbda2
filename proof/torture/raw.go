package torture

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// raw calls the store without a client: it comes late, repeats calls, and goes on although it
// has lost its lease.
func (l *lane) raw() {
	if l.odds(3) {
		l.rawRecord()
		return
	}
	c := l.claim(l.key("raw"))
	c.Mode = []store.Mode{store.Try, store.Queue}[l.r.IntN(2)]
	c.PlaceTTL = l.TTL / 2
	a, ok := l.ask(c)
	for end := time.Now().Add(l.TTL); ok && a.State == store.Held && a.Queued && time.Now().Before(end) && !l.faultsEnded(); {
		l.pause(l.TTL / 20)
		a, ok = l.ask(c)
	}
	if !ok || a.State != store.Granted {
		l.end(c, store.Release)
		return
	}
	switch l.r.IntN(6) {
	case 0: // asks again while it holds the lease
		l.ask(c)
	case 1: // renews, perhaps too late
		l.pause(l.upTo(2 * l.TTL))
		l.renew(c)
	case 2: // writes, perhaps too late
		l.pause(l.upTo(2 * l.TTL))
		l.write(c.Key.Name, a.Fence)
	case 3: // surely too late
		l.pause(l.TTL + l.TTL/10)
		l.renew(c)
		l.ask(c)
	case 4: // settles twice
		l.end(c, store.Release)
	}
	l.crash("before it settles")
	l.end(c, []store.Outcome{store.Release, store.Release, store.Abandon, store.Undo}[l.r.IntN(4)])
	l.renew(c) // after the end
}

// rawRecord keeps a record, perhaps too late, and perhaps twice.
func (l *lane) rawRecord() {
	c := l.claim(l.fresh("kept"))
	c.MaxAge, c.Fingerprint = dibs.AnyAge, dibs.Fingerprint{1}
	if l.odds(8) {
		c.Fingerprint = dibs.Fingerprint{2}
	}
	a, ok := l.ask(c)
	if !ok || a.State != store.Granted {
		return
	}
	if l.odds(3) {
		l.pause(l.TTL/2 + l.upTo(l.TTL))
	}
	data := c.Token[:]
	l.keep(c, data)
	if l.odds(3) {
		l.keep(c, data)
	}
	l.ask(c)
	if l.odds(3) {
		l.end(c, store.Release)
	}
}

// claim returns a Try of the key.
func (l *lane) claim(key string) store.Claim {
	return store.Claim{
		Key: l.client.Key(key), Token: store.NewToken(), Mode: store.Try, TTL: l.TTL, Permits: 1, Weight: 1,
		Owner: store.Owner{Label: "torture, raw"},
	}
}

// ask claims. It is not ok if no answer came.
func (l *lane) ask(c store.Claim) (a store.Answer, ok bool) {
	ctx, cancel := l.limited()
	defer cancel()
	answers := make([]store.Answer, 1)
	err := l.store.Claim(ctx, []store.Claim{c}, answers)
	return answers[0], err == nil && answers[0].Err == nil
}

func (l *lane) renew(c store.Claim) {
	ctx, cancel := l.limited()
	defer cancel()
	errs := make([]error, 1)
	_ = l.store.Renew(ctx, []store.Renewal{{Key: c.Key, Token: c.Token, TTL: c.TTL}}, errs)
	if errors.Is(errs[0], dibs.ErrLost) {
		l.out.send(message{Lost: true})
	}
}

func (l *lane) end(c store.Claim, o store.Outcome) {
	l.settle(store.Settlement{Key: c.Key, Token: c.Token, Outcome: o})
}

func (l *lane) keep(c store.Claim, data []byte) {
	l.settle(store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Keep, Data: data, Retention: long})
}

func (l *lane) settle(x store.Settlement) {
	ctx, cancel := l.limited()
	defer cancel()
	_ = l.store.Settle(ctx, []store.Settlement{x}, make([]error, 1))
}

// limited returns the context of a call that mostly waits for as long as a lease lasts, and
// sometimes gives up soon.
func (l *lane) limited() (context.Context, context.CancelFunc) {
	if l.odds(6) {
		return context.WithTimeout(l.ctx, l.upTo(l.TTL/10))
	}
	return context.WithTimeout(l.ctx, l.TTL)
}

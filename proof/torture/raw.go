package torture

import (
	"errors"
	"time"

	"github.com/dibs-go/dibs"
)

// raw calls the store without a client: it comes late, repeats calls, and goes on although it
// has lost its lease.
func (l *lane) raw() {
	if l.odds(3) {
		l.rawRecord()
		return
	}
	c := l.claim(l.key("raw"))
	c.Mode = []dibs.Mode{dibs.Try, dibs.Queue}[l.r.IntN(2)]
	c.Stay = l.TTL / 2
	a, ok := l.ask(c)
	for end := time.Now().Add(l.TTL); ok && a.State == dibs.Held && a.Queued && time.Now().Before(end) && !l.faultsEnded(); {
		l.pause(l.TTL / 20)
		a, ok = l.ask(c)
	}
	if !ok || a.State != dibs.Granted {
		l.end(c, dibs.Release)
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
		l.end(c, dibs.Release)
	}
	l.crash("before it settles")
	l.end(c, []dibs.Outcome{dibs.Release, dibs.Release, dibs.Abandon, dibs.Undo}[l.r.IntN(4)])
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
	if !ok || a.State != dibs.Granted {
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
		l.end(c, dibs.Release)
	}
}

// claim returns a Try of the key.
func (l *lane) claim(key string) dibs.Claim {
	return dibs.Claim{
		Key: l.client.Key(key), Token: dibs.NewToken(), Mode: dibs.Try, TTL: l.TTL, Permits: 1, Weight: 1,
		Owner: dibs.Owner{Label: "torture, raw"},
	}
}

// ask claims. It is not ok if no answer came.
func (l *lane) ask(c dibs.Claim) (a dibs.Answer, ok bool) {
	answers := make([]dibs.Answer, 1)
	err := l.store.Claim(l.ctx, []dibs.Claim{c}, answers)
	return answers[0], err == nil && answers[0].Err == nil
}

func (l *lane) renew(c dibs.Claim) {
	errs := make([]error, 1)
	_ = l.store.Renew(l.ctx, []dibs.Renewal{{Key: c.Key, Token: c.Token, TTL: c.TTL}}, errs)
	if errors.Is(errs[0], dibs.ErrLost) {
		l.out.send(message{Lost: true})
	}
}

func (l *lane) end(c dibs.Claim, o dibs.Outcome) {
	_ = l.store.Settle(l.ctx, []dibs.Settlement{{Key: c.Key, Token: c.Token, Outcome: o}}, make([]error, 1))
}

func (l *lane) keep(c dibs.Claim, data []byte) {
	_ = l.store.Settle(l.ctx, []dibs.Settlement{{Key: c.Key, Token: c.Token, Outcome: dibs.Keep, Data: data, Retention: long}}, make([]error, 1))
}

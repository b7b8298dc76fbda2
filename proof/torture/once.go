package torture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// once runs a function once for a key, for all callers.
func (l *lane) once() {
	o := &dibs.OnceOptions{Wait: l.wait(), Retention: long}
	var by once = dibs.Once[string]
	if l.odds(3) {
		by, o.Wait = dibs.TryOnce[string], 0
	}
	l.call(by, l.fresh("once"), o)
}

// long is a retention that outlasts every run.
const long = 24 * time.Hour

// brief is once with a short retention.
func (l *lane) brief() {
	o := &dibs.OnceOptions{Wait: l.wait(), Retention: l.TTL/2 + l.upTo(l.TTL/2), MaxAge: l.TTL / 2}
	l.call(dibs.Once, hotKey("brief", l.r.IntN(hotKeys)), o)
}

// atMostOnce is once for a function that must not run again if its outcome is unknown.
func (l *lane) atMostOnce() {
	l.call(dibs.Once, l.fresh("most"), &dibs.OnceOptions{Wait: l.wait(), Retention: long, AtMostOnce: true})
}

// inTransaction is once in a transaction of the store's database.
func (l *lane) inTransaction() {
	if l.tx == nil {
		l.once()
		return
	}
	by := func(ctx context.Context, c *dibs.Client, key string, o *dibs.OnceOptions, fn func(context.Context) (string, error)) (string, error) {
		return dibs.OnceIn(ctx, c, l.tx, key, o, fn)
	}
	l.call(by, l.fresh("tx"), &dibs.OnceOptions{Wait: l.wait(), Retention: long})
}

// errOwn is an error of the function itself. It leaves no record.
var errOwn = errors.New("the function failed by itself")

// once is Once, TryOnce or OnceIn.
type once func(ctx context.Context, c *dibs.Client, key string, o *dibs.OnceOptions, fn func(context.Context) (string, error)) (string, error)

// call calls once and writes down its result. Most callers of a key have the same fingerprint.
func (l *lane) call(by once, key string, o *dibs.OnceOptions) {
	if kindOf(key) != "brief" {
		o.Fingerprint = dibs.Fingerprint{1}
		if l.odds(15) {
			o.Fingerprint = dibs.Fingerprint{2}
		}
	}
	began := history.Now()
	ctx, cancel := l.impatient()
	defer cancel()
	run := func(ctx context.Context) (string, error) {
		l.pause(l.hold())
		if l.odds(20) {
			return "", errOwn
		}
		result := fmt.Sprintf("%d.%d.%d", l.Process, l.Restarts, l.results.Add(1))
		if kindOf(key) == "tx" {
			if err := l.db.insert(history.Inside(ctx), l.Run, key, result); err != nil {
				return "", fmt.Errorf("%w: %w", errOwn, err)
			}
		}
		l.crash("after the effect")
		return result, nil
	}
	result, err := by(ctx, l.client, key, o, run)
	l.crash("before the reply")
	if errors.Is(err, dibs.ErrLost) {
		l.out.send(message{Lost: true})
	}
	if err == nil {
		data := history.Data([]byte(`{"value":"` + result + `"}`)) // as dibs.Once writes it
		l.note(history.Event{Kind: history.Reply, Key: key, Call: began, Data: data})
	}
}

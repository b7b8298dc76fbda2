package workload

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
)

// ErrWork is the error of a function that fails. It leaves no record.
var ErrWork = errors.New("the work failed")

// result is the result of a function. It is unique.
type result struct {
	Run   string `json:"run"`
	Steps []string
}

// print is the fingerprint of what most callers of a key ask for, and few do not.
func (a *Actor) print() dibs.Fingerprint {
	asked := "this"
	if a.Chance(15) {
		asked = "that"
	}
	return sha256.Sum256([]byte(asked))
}

// once calls dibs.Once, dibs.TryOnce or dibs.OnceIn.
func (a *Actor) once(ctx context.Context, k Key) {
	asking, cancel := a.Impatience(ctx)
	defer cancel()
	o := &dibs.OnceOptions{Wait: a.Patience, Retention: k.Retention, AtMostOnce: k.Kind == AtMostOnce}
	once := dibs.Once[result]
	if a.Chance(20) {
		once, o.Wait = dibs.TryOnce[result], 0
	} else if a.Chance(50) {
		o.Wait = a.UpTo(4 * a.TTL)
	}
	if k.Kind == Tx {
		once = func(ctx context.Context, c *dibs.Client, key string, o *dibs.OnceOptions, fn func(context.Context) (result, error)) (result, error) {
			return dibs.OnceIn(ctx, c, a.Transactor, key, o, fn)
		}
	}
	o.Fingerprint = a.print()
	if k.Retention > time.Minute && a.Chance(20) {
		o.MaxAge = k.Retention / 2 // with a short one it would be done again
	}
	got, err := once(asking, a.Client, k.Name, o, func(ctx context.Context) (result, error) { return a.effect(ctx, k) })
	alive := a.Gate()
	a.Crash("before the reply")
	if errors.Is(err, dibs.ErrLost) {
		a.Lost()
	}
	if err == nil && alive {
		text, err := json.Marshal(map[string]result{"value": got}) // as the record has it
		if err != nil {
			panic(err)
		}
		a.Note(history.Event{Kind: history.Reply, Key: k.Name, Data: history.Data(text)})
	}
	a.Rest(ctx, a.below(a.TTL/2)) // replays are quick, and show little
}

// effect is the function that Once runs.
func (a *Actor) effect(ctx context.Context, k Key) (r result, err error) {
	lease, ok := dibs.FromContext(ctx)
	if !ok {
		panic("workload: Once ran without a lease")
	}
	if !a.Gate() {
		return r, ErrWork
	}
	here := history.Event{Kind: history.Enter, Key: k.Name, Token: history.Token(a.Store, lease.ID()), Fence: lease.Fence(), Permits: 1}
	a.Note(here)
	defer func() {
		here.Kind, here.Error = history.Leave, whyOver(lease)
		a.Note(here)
	}()
	r.Run = a.Next()
	if k.Kind == Tx {
		if err := a.Insert(ctx, k.Name, r.Run); err != nil {
			return r, errors.Join(ErrWork, err)
		}
	} else {
		for _, step := range []string{"a", "b"}[:a.IntN(3)] {
			n, err := dibs.Step(ctx, step, func(context.Context) (string, error) { return a.Next(), nil })
			if err != nil {
				a.Gate()
				return r, err
			}
			r.Steps = append(r.Steps, n)
		}
	}
	a.Crash("after the effect")
	if a.Chance(15) || !a.Rest(ctx, a.Step()) {
		a.Gate()
		return r, ErrWork
	}
	if a.Chance(50) {
		a.Rest(ctx, a.Step())
		a.Gate()
	}
	return r, nil
}

// noClient calls the store without a client: it asks again although it knows the answer, renews
// what is over, writes late, and settles twice and late. The store must stand that.
func (a *Actor) noClient(ctx context.Context, k Key) {
	if a.Calm() || a.Chance(20) {
		a.Lock(ctx, k)
		return
	}
	ttl := a.TTL / 2
	c := store.Claim{
		Key: a.Client.Key(k.Name), Token: store.NewToken(), TTL: ttl, PlaceTTL: ttl, Permits: 1, Weight: 1,
		Mode: []store.Mode{store.Try, store.Queue, store.Queue}[a.IntN(3)],
	}
	if a.Chance(60) {
		c.MaxAge, c.Fingerprint = dibs.AnyAge, a.print()
	}
	fence := uint64(0) // while it holds the key, as far as it knows
	for range 2 + a.IntN(8) {
		pause := a.UpTo(a.TTL)
		if c.Mode == store.Queue && fence == 0 {
			pause = min(pause, ttl/4)
		}
		if !a.Rest(ctx, pause) || a.Calm() {
			break
		}
		switch n := a.IntN(10); {
		case n < 4 || fence == 0 && n < 8:
			answer, ok := call(ctx, a, c, a.Store.Claim)
			if !ok {
				continue
			}
			switch answer.State {
			case store.Granted:
				fence = answer.Fence
				a.Write(k.Name, fence)
			case store.Held:
				fence = 0 // it has run out, and the token waits anew
			default:
				return
			}
		case n < 7:
			a.renew(ctx, c)
			if fence != 0 {
				a.Write(k.Name, fence) // perhaps too late
			}
		default:
			a.end(ctx, c, fence != 0, k.Retention)
			return
		}
	}
	a.Crash("before it settles")
	if a.Chance(70) || a.Calm() {
		_, _ = call(context.WithoutCancel(ctx), a, store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Release}, a.Store.Settle)
	}
}

// end settles a claim in any way, once or twice, and renews after that. Where grants are pushed, a token that
// knows of none may have missed one, which it only releases.
func (a *Actor) end(ctx context.Context, c store.Claim, granted bool, retention time.Duration) {
	x := store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Outcome(a.IntN(4))}
	if !granted && a.Pushes {
		x.Outcome = store.Release
	}
	if x.Outcome == store.Keep {
		x.Data, x.Retention = []byte("record "+a.Next()), retention
	}
	for range 1 + a.IntN(2) {
		_, _ = call(ctx, a, x, a.Store.Settle)
		if !a.Rest(ctx, a.UpTo(c.TTL)) {
			return
		}
	}
	if a.Chance(30) {
		a.renew(ctx, c)
	}
}

func (a *Actor) renew(ctx context.Context, c store.Claim) {
	if err, _ := call(ctx, a, store.Renewal{Key: c.Key, Token: c.Token, TTL: c.TTL}, a.Store.Renew); errors.Is(err, dibs.ErrLost) {
		a.Lost()
	}
}

// call makes one call of the store, with a time limit. It is not ok if no answer came.
func call[Q, A any](ctx context.Context, a *Actor, q Q, do func(context.Context, []Q, []A) error) (answer A, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	answers := make([]A, 1)
	err := do(ctx, slices.Clone([]Q{q}), answers)
	return answers[0], a.Gate() && err == nil
}

package workload

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
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
	here := history.Event{Kind: history.Enter, Key: k.Name, Token: history.Token(a.Recorder, lease.ID()), Fence: lease.Fence(), Permits: 1}
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

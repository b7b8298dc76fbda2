package sim

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// errWork is the error of a function that fails.
var errWork = errors.New("sim: the work failed")

// result is the result of a function. It is unique.
type result struct {
	Run   uint64 `json:"run"`
	Steps []uint64
}

// once calls dibs.Once.
func (w *worker) once(ctx context.Context, k key) {
	asking, cancel := w.impatience(ctx)
	defer cancel()
	o := &dibs.OnceOptions{Retention: k.retention, AtMostOnce: k.kind == AtMostOnce}
	once := dibs.Once[result]
	if w.chance(20) {
		once = dibs.TryOnce[result]
	} else if w.chance(50) {
		o.Wait = w.upTo(4 * w.world.plan.ttl)
	}
	asked := "this"
	if w.chance(15) {
		asked = "that"
	}
	o.Fingerprint = sha256.Sum256([]byte(asked))
	if k.retention > time.Minute && w.chance(20) {
		o.MaxAge = k.retention / 2 // with a short one it would be done again
	}
	got, err := once(asking, w.session.client, k.name, o, func(ctx context.Context) (result, error) {
		return w.effect(ctx, k)
	})
	alive := w.gate()
	w.rest(ctx, rand64(w.Rand, w.world.plan.ttl/2)) // replays are quick, and show little
	if err != nil || !alive {
		return
	}
	text, err := json.Marshal(map[string]result{"value": got}) // as the record has it
	if err != nil {
		panic(err)
	}
	w.note(history.Reply, history.Event{Key: k.name, Data: history.Data(text)})
}

// effect is the function that Once runs.
func (w *worker) effect(ctx context.Context, k key) (r result, err error) {
	lease, ok := dibs.FromContext(ctx)
	if !ok {
		panic("sim: Once ran without a lease")
	}
	if !w.gate() {
		return r, errWork
	}
	here := history.Event{Key: k.name, Token: w.session.token(lease), Fence: lease.Fence(), Permits: 1}
	w.note(history.Enter, here)
	defer func() {
		here.Error = whyOver(lease)
		w.note(history.Leave, here)
	}()
	r.Run = w.world.next()
	for _, step := range []string{"a", "b"}[:w.IntN(3)] {
		n, err := dibs.Step(ctx, step, func(context.Context) (uint64, error) { return w.world.next(), nil })
		if err != nil {
			w.gate()
			return r, err
		}
		r.Steps = append(r.Steps, n)
	}
	if w.chance(15) {
		w.gate()
		return r, errWork
	}
	if !w.rest(ctx, w.upTo(w.world.plan.ttl)) {
		w.gate()
		return r, errWork
	}
	if w.chance(50) {
		w.rest(ctx, w.upTo(w.world.plan.ttl))
		w.gate()
	}
	return r, nil
}

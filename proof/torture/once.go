package torture

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// once has a key done once, for all who ask.
func (l *lane) once() {
	o := &dibs.OnceOptions{Wait: l.wait(), NoWait: l.odds(3), Retention: long}
	l.ask(l.fresh("once"), o, false)
}

// long is a retention that outlasts every run.
const long = 24 * time.Hour

// brief has a key done once in a while: what is remembered is forgotten soon.
func (l *lane) brief() {
	o := &dibs.OnceOptions{Wait: l.wait(), Retention: l.TTL/2 + l.upTo(l.TTL/2), MaxAge: l.TTL / 2}
	l.ask(hotKey("brief", l.r.IntN(hotKeys)), o, false)
}

// atMostOnce has a key done once, and not again if nobody knows what became of it.
func (l *lane) atMostOnce() {
	o := &dibs.OnceOptions{Wait: l.wait(), Retention: long, AtMostOnce: true}
	l.ask(l.fresh("most"), o, false)
}

// inTransaction has a key done once, in a transaction of the store's database.
func (l *lane) inTransaction() {
	if l.tx == nil {
		l.once()
		return
	}
	l.ask(l.fresh("tx"), &dibs.OnceOptions{Wait: l.wait(), Retention: long}, true)
}

// errOwn is an error of what runs: nothing is remembered of it.
var errOwn = errors.New("the run failed by itself")

// ask asks for a key to be done once, perhaps in a transaction, and writes down what it was
// told. Everybody who asks under a key asks for the same, but for a few who do not.
func (l *lane) ask(key string, o *dibs.OnceOptions, inTransaction bool) {
	if kindOf(key) != "brief" {
		o.Fingerprint = dibs.Fingerprint{1}
		if l.odds(15) {
			o.Fingerprint = dibs.Fingerprint{2}
		}
	}
	reply := history.Event{
		Kind: history.Reply, Key: key, Fingerprint: hex.EncodeToString(o.Fingerprint[:1]), Call: history.Now(), State: "replayed",
	}
	ctx, cancel := l.unwanted()
	defer cancel()
	run := func(ctx context.Context) (string, error) {
		reply.State = "ran"
		l.pause(l.hold())
		if l.odds(20) {
			return "", errOwn
		}
		result := fmt.Sprintf("%d.%d.%d", l.Process, l.Life, l.results.Add(1))
		if inTransaction {
			if err := l.db.insert(history.Inside(ctx), l.Run, key, result); err != nil {
				return "", fmt.Errorf("%w: %w", errOwn, err)
			}
			l.crash("in the transaction")
			return result, nil
		}
		lease, _ := dibs.FromContext(ctx)
		l.note(history.Event{
			Kind: history.Effect, Key: key, Fence: lease.Fence(), Token: history.Token(l.store, lease.ID()),
			Retention: remembered(o),
		})
		l.crash("after the effect")
		return result, nil
	}
	var result string
	var err error
	if inTransaction {
		result, err = dibs.OnceIn(ctx, l.client, l.tx, key, o, run)
	} else {
		result, err = dibs.Once(ctx, l.client, key, o, run)
	}
	l.crash("before the reply")
	if errors.Is(err, dibs.ErrLost) {
		l.tell.say(message{Lost: true})
	}
	if reply.Error = inWords(err); reply.Error == "" {
		reply.Data, reply.Retention = history.Data([]byte(`{"value":"`+result+`"}`)), remembered(o) // as dibs.Once writes it
	} else {
		reply.Text = err.Error()
		if reply.State != "ran" {
			reply.State = ""
		}
	}
	l.note(reply)
}

// remembered is how long after an effect nobody has it happen again.
func remembered(o *dibs.OnceOptions) time.Duration {
	if o.MaxAge > 0 {
		return min(o.Retention, o.MaxAge)
	}
	return o.Retention
}

// inWords says in a history what an error of Once was.
func inWords(err error) string {
	_, unkept := errors.AsType[*dibs.KeepError](err)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, dibs.ErrLost):
		return history.Lost
	case errors.Is(err, dibs.ErrHeld):
		return "held"
	case errors.Is(err, dibs.ErrMismatch):
		return "mismatch"
	case errors.Is(err, dibs.ErrUnknown):
		return "outcome unknown"
	case errors.Is(err, errOwn):
		return "own"
	case errors.Is(err, dibs.ErrRolledBack), errors.Is(err, dibs.ErrTransactionEnded):
		return "rolled back"
	case unkept:
		return "not kept"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "gave up"
	}
	return history.Unknown
}

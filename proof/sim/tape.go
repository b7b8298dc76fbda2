package sim

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// tape writes down what happens, in memory.
type tape struct {
	began time.Time

	mu     sync.Mutex
	all    []history.Event
	asked  int
	tokens map[dibs.Token]uint64 // numbers
	names  map[string]string     // by the token's ID
}

func newTape(began time.Time) *tape {
	return &tape{began: began, tokens: map[dibs.Token]uint64{}, names: map[string]string{}}
}

// now is the time on the tape. It never is 0, which is no time.
func (t *tape) now() time.Duration { return time.Since(t.began) + time.Second }

// note writes down what happens at this moment.
func (t *tape) note(e history.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Call = t.now()
	e.Return = e.Call
	t.all = append(t.all, e)
}

// since writes down what went on until now.
func (t *tape) since(call time.Duration, e history.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Call, e.Return = call, t.now()
	t.all = append(t.all, e)
}

// call writes down elements of a call that leaves now, and returns the first one's
// number.
func (t *tape) call(l *life, n int, event func(i int) history.Event) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := len(t.all)
	t.asked += n
	for i := range n {
		e := event(i)
		e.Process, e.Life, e.ID, e.Call = l.process.number, l.number, uint64(first+i+1), t.now()
		t.all = append(t.all, e)
	}
	return first
}

// answer writes down the answers to n elements from the first on.
func (t *tape) answer(first, n int, answer func(i int, e *history.Event)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range n {
		e := &t.all[first+i]
		e.Return = t.now()
		answer(i, e)
	}
}

// ghosts writes down that n elements arrive once more, which nobody hears of.
func (t *tape) ghosts(l *life, n int, event func(i int) history.Event) {
	first := t.call(l, n, event)
	t.answer(first, n, func(_ int, e *history.Event) { e.Return, e.Error = 0, history.Unknown })
}

// fault writes down that a fault bit a process.
func (t *tape) fault(name string, process int) {
	t.note(history.Event{Kind: history.Fault, Name: name, Process: process, Times: 1})
}

// token names a token: by a number, so that a history does not depend on the random
// digits. The tape's lock is held.
func (t *tape) token(k dibs.Token) string {
	if k.IsZero() {
		return ""
	}
	n, ok := t.tokens[k]
	if !ok {
		n = uint64(len(t.tokens) + 1)
		t.tokens[k] = n
		t.names[k.ID()] = spell(n)
	}
	return spell(n)
}

func spell(n uint64) string { return fmt.Sprintf("%032x", n) }

// number returns the token's number; 0 for one that is not on the tape.
func (t *tape) number(k dibs.Token) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tokens[k]
}

// named returns the token with that ID.
func (t *tape) named(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names[id]
}

// events returns all that was written down, in the order of the calls.
func (t *tape) events() []history.Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.all)
	slices.SortStableFunc(all, func(a, b history.Event) int { return cmp.Compare(a.Call, b.Call) })
	return all
}

func (t *tape) operations() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked
}

// What follows says in a history's words what was asked and answered.

var modes = [...]string{dibs.Try: "try", dibs.Queue: "queue", dibs.Reserve: "reserve", dibs.Look: "look"}

var outcomes = [...]string{dibs.Release: "release", dibs.Keep: "keep", dibs.Abandon: "abandon", dibs.Undo: "undo"}

var states = [...]string{
	dibs.Granted: "granted", dibs.Held: "held", dibs.Free: "free", dibs.Done: "done",
	dibs.Mismatch: "mismatch", dibs.PermitsDiffer: "permits differ", dibs.Unknown: "unknown",
}

func (t *tape) claim(c *dibs.Claim) history.Event {
	e := history.Event{
		Kind: history.Claim, Key: c.Key.Name, Token: t.token(c.Token), Mode: modes[c.Mode],
		TTL: c.TTL, Place: c.Place, Hold: c.Hold, Redeems: t.token(c.Redeems),
		Permits: c.Permits, MaxAge: c.MaxAge, AtMostOnce: c.AtMostOnce,
	}
	if !c.Fingerprint.IsZero() {
		e.Fingerprint = spellPrint(c.Fingerprint)
	}
	return e
}

func spellPrint(f dibs.Fingerprint) string { return hex.EncodeToString(f[:4]) }

func (t *tape) renewal(r *dibs.Renewal) history.Event {
	return history.Event{Kind: history.Renew, Key: r.Key.Name, Token: t.token(r.Token), TTL: r.TTL}
}

func (t *tape) settlement(x *dibs.Settlement) history.Event {
	return history.Event{
		Kind: history.Settle, Key: x.Key.Name, Token: t.token(x.Token), Outcome: outcomes[x.Outcome],
		Data: string(x.Data), Retention: x.Retention,
	}
}

// answered writes down what a claim was answered.
func answered(e *history.Event, a *dibs.Answer) {
	if a.Err != nil {
		e.Error = a.Err.Error()
		return
	}
	e.State = states[a.State]
	e.Fence, e.Attempt, e.Ahead, e.Queued, e.Left = a.Fence, a.Attempt, a.Ahead, a.Queued, a.Left
	if a.State == dibs.Done {
		e.Data = string(a.Record.Data)
	}
}

// failed returns an element's error in a history's words.
func failed(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, dibs.ErrLost):
		return history.Lost
	}
	return err.Error()
}

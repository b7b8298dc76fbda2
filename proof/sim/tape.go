package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// tape is what happens, written down in memory.
type tape struct {
	history.Memory
	began time.Time
	all   *history.Writer // of what befalls the processes and the store
}

func newTape(began time.Time) *tape {
	t := &tape{began: began}
	t.all = t.writer(0, 0)
	return t
}

// now is the time on the tape. It never is 0, which is no time.
func (t *tape) now() time.Duration { return time.Since(t.began) + time.Second }

// writer returns what a life of a process writes with.
func (t *tape) writer(process, life int) *history.Writer {
	w := t.Writer(process, life)
	w.Now = t.now
	return w
}

// note writes down what happens at this moment, or has gone on until now if it has a Call.
func (t *tape) note(e history.Event) {
	_ = t.all.Happened(e) // memory takes everything
}

// fault writes down that a fault bit a process.
func (t *tape) fault(name string, process int) {
	t.note(history.Event{Kind: history.Fault, Name: name, Process: process, Times: 1})
}

// events returns all that was written down, in the order of the calls. Tokens are numbered,
// so that a history does not depend on their random digits.
func (t *tape) events() []history.Event {
	all := t.Events()
	numbers := map[string]string{"": ""}
	number := func(token *string) {
		if _, ok := numbers[*token]; !ok {
			numbers[*token] = fmt.Sprintf("%032x", len(numbers))
		}
		*token = numbers[*token]
	}
	none := dibs.Token{}
	for i := range all {
		if all[i].Token == fmt.Sprintf("%x", none[:]) {
			continue // who only looks has none
		}
		number(&all[i].From)
		number(&all[i].Token)
	}
	return all
}

// mortal is a store as a process sees it: a process that was killed asks nothing, and what
// it asks is not written down.
type mortal struct {
	recorded dibs.Store
	life     *life
}

// Batching implements dibs.Batcher.
func (m *mortal) Batching() dibs.Batching { return m.recorded.(dibs.Batcher).Batching() }

// Notify implements dibs.Notifier.
func (m *mortal) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	return m.recorded.(dibs.Notifier).Notify(wake)
}

// Claim implements dibs.Store.
func (m *mortal) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if m.life.isDead() {
		return errReset
	}
	return m.recorded.Claim(ctx, claims, answers)
}

// Renew implements dibs.Store.
func (m *mortal) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if m.life.isDead() {
		return errReset
	}
	return m.recorded.Renew(ctx, renewals, errs)
}

// Settle implements dibs.Store.
func (m *mortal) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if m.life.isDead() {
		return errReset
	}
	return m.recorded.Settle(ctx, settlements, errs)
}

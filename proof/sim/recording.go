package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
)

// recording is the history in memory.
type recording struct {
	history.Memory
	began time.Time
	all   *history.Writer // of faults
}

func newRecording(began time.Time) *recording {
	t := &recording{began: began}
	t.all = t.writer(0, 0)
	return t
}

// now returns the time of the recording. It is never 0, because 0 is no time.
func (t *recording) now() time.Duration { return time.Since(t.began) + time.Second }

// writer returns the writer of a session.
func (t *recording) writer(process, session int) *history.Writer {
	w := t.Writer(process, session)
	w.Now = t.now
	return w
}

// note writes an event of this moment, or one that has gone on since its Call.
func (t *recording) note(e history.Event) {
	_ = t.all.Happened(e) // memory takes everything
}

// fault writes that a fault hit a process.
func (t *recording) fault(name string, process int) {
	t.note(history.Event{Kind: history.Fault, Name: name, Process: process, Times: 1})
}

// events returns the history, in the order of the calls. Tokens are numbered, so that a history
// does not depend on their random digits.
func (t *recording) events() []history.Event {
	all := t.Events()
	numbers := map[string]string{"": ""}
	number := func(token *string) {
		if _, ok := numbers[*token]; !ok {
			numbers[*token] = fmt.Sprintf("%032x", len(numbers))
		}
		*token = numbers[*token]
	}
	none := store.Token{}
	for i := range all {
		if all[i].Token == fmt.Sprintf("%x", none[:]) {
			continue // a Look has none
		}
		number(&all[i].From)
		number(&all[i].Token)
	}
	return all
}

// sessionStore is the store of a session. After the process was killed it makes no calls, and
// the history has none.
type sessionStore struct {
	recorded dibs.Store
	session  *session
}

// Batching implements store.Batcher.
func (m *sessionStore) Batching() store.Batching { return m.recorded.(store.Batcher).Batching() }

// Notify implements store.Notifier.
func (m *sessionStore) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	return m.recorded.(store.Notifier).Notify(wake)
}

// Claim implements dibs.Store.
func (m *sessionStore) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if m.session.isDead() {
		return errReset
	}
	return m.recorded.Claim(ctx, claims, answers)
}

// Renew implements dibs.Store.
func (m *sessionStore) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if m.session.isDead() {
		return errReset
	}
	return m.recorded.Renew(ctx, renewals, errs)
}

// Settle implements dibs.Store.
func (m *sessionStore) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if m.session.isDead() {
		return errReset
	}
	return m.recorded.Settle(ctx, settlements, errs)
}

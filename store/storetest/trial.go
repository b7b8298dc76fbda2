package storetest

import (
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Trial is one try of a property, on a backend of its own. It is the
// testing.TB that the property reports to.
type Trial struct {
	testing.TB

	h       *Harness
	turn    time.Duration // how long a pushed grant lasts
	subject *Subject
	shared  store.Store // the only store, where there cannot be two
}

// long is a lease, a place or a retention that no trial outlasts. Properties use
// fractions and multiples of it, so that ends differ.
const long = time.Hour

// tick is how wrong a store's times may be, because it may round them to milliseconds twice.
const tick = 2 * time.Millisecond

// limit is how long a property waits for what happens by itself. After that it reports
// that the store hangs.
const limit = time.Minute

// process opens a store: in a process of its own where the backend can have
// several, else the one there is.
func (t *Trial) process() *process {
	if t.h.lacks(Processes) == "" {
		return &process{t: t, store: t.subject.Open()}
	}
	if t.shared == nil {
		t.shared = t.subject.Open()
	}
	return &process{t: t, store: t.shared}
}

// skewed opens a store in a process whose clock is wrong.
func (t *Trial) skewed(d time.Duration) *process {
	return &process{t: t, store: t.subject.OpenSkewed(d)}
}

// restart stops and starts the backend, and opens a store on it.
func (t *Trial) restart() *process {
	t.subject.Restart()
	t.shared = nil
	return t.process()
}

// wipe makes the backend lose its data, and opens a store on it.
func (t *Trial) wipe() *process {
	t.subject.Wipe()
	t.shared = nil
	return t.process()
}

// short is a lease, a place or a retention that a trial outlasts. On a slow machine it may
// have ended at once, so no property relies on it being live.
func (t *Trial) short() time.Duration { return t.h.Short }

// outlast waits for d, and for how late the backend may be.
func (t *Trial) outlast(d time.Duration) { time.Sleep(d + t.h.Late) }

// poll asks until the answer is yes, and fails the trial after the limit.
func (t *Trial) poll(what string, yes func() bool) {
	t.Helper()
	for start := time.Now(); !yes(); time.Sleep(t.h.Short / 20) {
		if time.Since(start) > limit {
			t.Fatalf("%s: not after %v of asking", what, limit)
		}
	}
}

// inTime checks what must be prolonged before it expires. It calls attempt with a new key
// and with d, which is how long something on that key lasts. attempt returns false if d was
// over before the call that prolongs it was answered, because then the outcome says nothing.
// inTime then calls it again with another key and twice the time. The answer of the store
// must not decide that.
func (t *Trial) inTime(name string, attempt func(k store.Key, d time.Duration) bool) {
	t.Helper()
	for i, d := 0, t.short(); !attempt(key(name+" "+itoa(i)), d); i, d = i+1, 2*d {
		if d > limit {
			t.Fatalf("%s: the store takes longer than %v to answer", name, limit)
		}
	}
}

// state fails the trial unless the answer has the state.
func (t *Trial) state(what string, a store.Answer, want store.State) {
	t.Helper()
	if a.Err != nil {
		t.Fatalf("%s: failed alone with %q, want %s", what, a.Err, stateName(want))
	}
	if a.State != want {
		t.Fatalf("%s: %s, want %s", what, stateName(a.State), stateName(want))
	}
}

// granted fails the trial unless the answer is a grant of that attempt.
func (t *Trial) granted(what string, a store.Answer, attempt int) uint64 {
	t.Helper()
	t.state(what, a, store.Granted)
	if a.Attempt != attempt {
		t.Fatalf("%s: granted as attempt %d, want %d", what, a.Attempt, attempt)
	}
	if a.Fence == 0 {
		t.Fatalf("%s: granted with fence 0", what)
	}
	return a.Fence
}

// keeps fails the trial unless the answer is the first attempt's grant, with the fence that it had.
func (t *Trial) keeps(what string, a store.Answer, fence uint64) {
	t.Helper()
	if got := t.granted(what, a, 1); got != fence {
		t.Fatalf("%s: the fence is %d, and was %d", what, got, fence)
	}
}

// handed fails the trial unless the answer is a grant of that attempt, with the progress of those
// before it.
func (t *Trial) handed(what string, a store.Answer, attempt int, progress string) {
	t.Helper()
	t.granted(what, a, attempt)
	if got := string(a.Progress); got != progress {
		t.Fatalf("%s, attempt %d: got the progress %s, want %s", what, attempt, excerpt(got), excerpt(progress))
	}
}

// done fails the trial unless the answer is the record with that data.
func (t *Trial) done(what string, a store.Answer, data string) {
	t.Helper()
	t.state(what, a, store.Done)
	if got := string(a.Record.Data); got != data {
		t.Fatalf("%s: the record is %s, want %s", what, excerpt(got), excerpt(data))
	}
	if a.Record.Age < 0 || a.Record.Left <= 0 {
		t.Fatalf("%s: the record's age is %v and it is kept for %v more", what, a.Record.Age, a.Record.Left)
	}
}

// ok fails the trial unless a renewal or settlement was done.
func (t *Trial) ok(what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v, want nil", what, err)
	}
}

// lost fails the trial unless a renewal or settlement got ErrLost.
func (t *Trial) lost(what string, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrLost) {
		t.Fatalf("%s: %v, want ErrLost", what, err)
	}
}

func excerpt(s string) string {
	const most = 40
	if len(s) <= most {
		return quoted(s)
	}
	return quoted(s[:most]) + "… (" + itoa(len(s)) + " bytes)"
}

var stateNames = map[store.State]string{
	store.Granted:  "Granted",
	store.Held:     "Held",
	store.Free:     "Free",
	store.Done:     "Done",
	store.Mismatch: "Mismatch",
	store.Unknown:  "Unknown",
}

func stateName(s store.State) string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return "State " + itoa(int(s))
}

// key returns a key of the namespace that most properties use.
func key(name string) store.Key { return store.Key{Namespace: "storetest", Name: name} }

// printOf returns the fingerprint of a text.
func printOf(asked string) store.Fingerprint { return sha256.Sum256([]byte(asked)) }

// alone fails the trial unless an element failed alone, for another reason
// than a loss.
func (t *Trial) alone(what string, err error) {
	t.Helper()
	if err == nil || errors.Is(err, store.ErrLost) {
		t.Fatalf("%s: %v, want an error that says what is wrong with it", what, err)
	}
}

package conform

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

var onceCases = []Case{
	must("first-runs", "The first request with a key runs, and gets its answer", func(t *trial) {
		a := t.first()
		t.isStatus("the answer", a, http.StatusCreated)
		if string(a.body) != "run 1 of "+t.quoted()+"\n" || a.header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.wrongf("the answer is not the origin's: %v", a)
		}
		if marks := a.values("Idempotent-Replayed"); len(marks) > 0 {
			t.wrongf("an answer that is no replay has Idempotent-Replayed: %s", strings.Join(marks, ", "))
		}
		if seen := t.seen(0); len(seen) == 1 && string(seen[0].Body) != `{"amount":1200}` {
			t.wrongf("the origin got the body %s", excerpt(seen[0].Body))
		}
		t.ran(1)
	}, draft("2.6")),
	must("replay", "A retry gets the first answer and does not run", func(t *trial) { t.replayed() }, draft("2.6"), stripe, square),
	must("replay-many", "Every further retry gets the first answer", func(t *trial) {
		first := t.first()
		l := t.dial()
		for i := range 11 {
			what := "the answer of retry " + strconv.Itoa(i+1)
			if i%3 != 0 {
				t.repeats(what, t.again(), first)
				continue
			}
			t.must(l.send(t.request()))
			a := l.reply(http.MethodPost)
			t.repeats(what, a, first)
			if a.closes || a.err != nil {
				l = t.dial()
			}
		}
		t.ran(1)
	}, draft("2.6"), worldline),
	must("replay-late", "A late retry gets the first answer", func(t *trial) {
		first := t.first()
		t.pause(1500 * time.Millisecond)
		t.repeats("the late retry's answer", t.again(), first)
		t.ran(1)
	}, draft("2.3"), stripe, whop),
	should("replay-at-once", "A retry right after the answer gets the answer", func(t *trial) {
		for i := range 10 {
			key := withKey(t.numbered(i))
			first := t.send(key)
			t.repeats("the retry's answer", t.send(key), first)
		}
		t.ran(10)
	}, draft("2.6"), ours),
	should("replay-together", "Retries at the same moment do not conflict with one another", func(t *trial) {
		first := t.first()
		t.repeats("a retry's answer", t.again(), first)
		requests := make([]*request, 12)
		for i := range requests {
			requests[i] = t.request()
		}
		for _, a := range t.together(requests...) {
			t.repeats("the answer of one of twelve retries at once", a, first)
		}
		t.ran(1)
	}, draft("2.6")),
	practice("replay-marked", "A replay is marked as a replay", func(t *trial) {
		first := t.first()
		again := t.again()
		if marks := strings.Join(again.values("Idempotent-Replayed"), ", "); marks != "true" {
			t.wrongf("Idempotent-Replayed of the retry's answer is %q", marks)
		}
		if marks := first.values("Idempotent-Replayed"); len(marks) > 0 {
			t.wrongf("the first answer has Idempotent-Replayed: %s", strings.Join(marks, ", "))
		}
	}, stripeError, whop, epay),
	must("keys-apart", "A request with another key is another request", func(t *trial) {
		t.isRun("the first key's answer", t.send(withKey(t.numbered(1))), 1)
		t.isRun("the second key's answer", t.send(withKey(t.numbered(2))), 2)
		t.ran(2)
	}, draft("2.2")),
	must("keys-many", "Many keys at once are not mixed up", func(t *trial) {
		for group := range 6 {
			var requests []*request
			for i := range 20 {
				requests = append(requests, t.request(withKey(t.numbered(group*10+i/2))))
			}
			for i, a := range t.together(requests...) {
				key := t.numbered(group*10 + i/2)
				switch {
				case a.err == nil && a.run() == 0 && slices.Contains(t.kit.terms.conflict, a.status):
				case a.err != nil || a.status != http.StatusCreated || a.key() != key:
					t.wrongf("the key %s was answered %v, made for the key %s", key, a, a.key())
				}
			}
		}
		t.ran(60)
	}, draft("2.2")),
}

// numbered returns another key of the case.
func (t *trial) numbered(n int) string { return t.quote(t.key + "-" + strconv.Itoa(n)) }

// first sends the usual request. It ends the case unless the request ran and was answered whole.
func (t *trial) first(changes ...change) *reply {
	a := t.send(changes...)
	if a.err != nil || a.run() != 1 {
		t.stopf("the first answer is not that of run 1, but %v", a)
	}
	return a
}

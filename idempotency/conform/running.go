package conform

import (
	"slices"
	"strconv"
	"time"
)

var runningCases = []Case{
	must("running-once", "Duplicates do not run while the first request runs", func(t *trial) {
		first := t.slow()
		duplicates := make([]<-chan *reply, 12)
		for i := range duplicates {
			duplicates[i] = t.sending()
		}
		t.arrived(duplicates...)
		t.open(0)
		t.among(<-first, duplicates...)
		t.ran(1)
	}, draft("2.6"), stripe, adyen, worldline),
	must("running-race", "Of duplicates that arrive at the same moment one runs", func(t *trial) {
		for round := range 10 {
			requests := make([]*request, 10)
			for i := range requests {
				requests[i] = t.request(withKey(t.numbered(round)))
			}
			answers := t.together(requests...)
			i := slices.IndexFunc(answers, func(a *reply) bool { return a.err == nil && a.run() != 0 })
			if i < 0 {
				t.stopf("none of ten was answered by the origin, but the first one %v", answers[0])
			}
			for _, a := range answers {
				t.isAmong(a, answers[i])
			}
		}
		t.ran(10)
	}, draft("2.6"), paypal, checkout),
	should("running-refused", "A duplicate is refused while the first request runs", func(t *trial) {
		first := t.slow()
		t.refused("the duplicate", t.meanwhile(), t.kit.terms.conflict)
		t.open(0)
		t.isRun("the first one's answer", <-first, 1)
		t.ran(1)
	}, draft("2.7"), stripe, zuora, worldline),
	practice("running-retry-after", "The refusal of a duplicate says when to come back", func(t *trial) {
		first := t.slow()
		a := t.meanwhile()
		t.refused("the duplicate", a, t.kit.terms.conflict)
		after := a.values("Retry-After")
		if len(after) != 1 {
			t.wrongf("the refusal has %d lines of Retry-After", len(after))
		} else if n, err := strconv.Atoi(after[0]); err != nil || n < 1 || n > 3600 {
			t.wrongf("the refusal's Retry-After is %q", after[0])
		}
		t.open(0)
		<-first
	}, rfc(9110, "10.2.3"), ours),
	should("running-problem", "The refusal of a duplicate links to documentation", func(t *trial) {
		first := t.slow()
		t.documented("the refusal", t.meanwhile(), t.kit.terms.conflict)
		t.open(0)
		<-first
	}, draft("2.7"), rfc(9457, "3.1")),
	practice("running-unmarked", "A refusal is not marked as a replay", func(t *trial) {
		first := t.slow()
		others := []<-chan *reply{t.sending(), t.sending(withBody("another"))}
		t.arrived(others...)
		t.open(0)
		<-first
		for _, other := range others {
			if a := <-other; a.run() == 0 && a.values("Idempotent-Replayed") != nil {
				t.wrongf("a refusal says that it is a replay: %v", a)
			}
		}
	}, stripeError, ours),
	must("running-replayed", "A refused duplicate gets the answer after the first request has ended", func(t *trial) {
		first := t.slow()
		var early []<-chan *reply
		for range 3 {
			early = append(early, t.sending())
		}
		t.arrived(early...)
		t.open(0)
		answer := <-first
		t.among(answer, early...)
		t.repeats("the answer afterwards", t.again(), answer)
		t.ran(1)
	}, draft("2.6"), draft("2.7")),
	should("running-mismatch", "Another request under a key whose first request runs is refused as a mismatch", func(t *trial) {
		first := t.slow()
		t.refused("the other request", t.meanwhile(withBody("another")), t.kit.terms.mismatch)
		t.open(0)
		t.isRun("the first one's answer", <-first, 1)
		t.ran(1)
	}, draft("2.7"), draft("2.2")),
	must("running-others", "A request with another key does not wait", func(t *trial) {
		t.plays(held(), usual())
		first := t.sending()
		t.began(1)
		t.isRun("the other key's answer", t.meanwhile(withKey(t.numbered(2))), 2)
		t.open(0)
		t.isRun("the first one's answer", <-first, 1)
		t.ran(2)
	}, draft("2.2")),
}

// held is the usual answer after open.
func held() originAnswer {
	a := usual()
	a.Hold = true
	return a
}

// slow sends the usual request to an origin that waits, and returns when it has arrived.
func (t *trial) slow(changes ...change) <-chan *reply {
	t.plays(held())
	answered := t.sending(changes...)
	t.began(1)
	return answered
}

// meanwhile sends a request that should be answered while another one runs. It notes if it is
// not.
func (t *trial) meanwhile(changes ...change) *reply {
	answered := t.sending(changes...)
	timer := time.NewTimer(t.patience())
	defer timer.Stop()
	select {
	case a := <-answered:
		return a
	case <-timer.C:
		// Nothing is to hang on it.
		t.open(0)
		a := <-answered
		t.stopf("a request was not answered while the first one ran, but when that went on: %v", a)
		return a
	}
}

// arrival is how long a request may take until it reaches the target.
const arrival = time.Second

// arrived waits until all requests are answered, or have had the time to arrive.
func (t *trial) arrived(sent ...<-chan *reply) {
	t.pauseUntil(min(arrival, t.patience()), func() bool {
		return !slices.ContainsFunc(sent, func(c <-chan *reply) bool { return len(c) == 0 })
	})
}

// among checks that every answer is the first answer, or a refusal.
func (t *trial) among(first *reply, answers ...<-chan *reply) {
	t.isRun("the first one's answer", first, 1)
	for _, c := range answers {
		t.isAmong(<-c, first)
	}
}

func (t *trial) isAmong(a, first *reply) {
	if a.err == nil && a.run() == 0 {
		t.refused("a duplicate", a, t.kit.terms.conflict)
		return
	}
	t.repeats("a duplicate's answer", a, first)
}

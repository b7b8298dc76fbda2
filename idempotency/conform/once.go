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
			t.wrongf("an answer that is not a replay has Idempotent-Replayed: %s", strings.Join(marks, ", "))
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

var scopeCases = []Case{
	must("principals-apart", "Two principals with the same key are kept apart", func(t *trial) {
		one, other := t.principal("one"), t.principal("other")
		first := t.first(one)
		t.isRun("the other principal's answer", t.send(other), 2)
		t.repeats("the first principal's retry", t.again(one), first)
		t.ran(2)
	}, draft("5"), whop, solidgate).ifHas(needsAuthority),
	should("principals-blind", "One principal does not learn which keys another has used", func(t *trial) {
		t.plays(held(), usual())
		first := t.sending(t.principal("one"))
		t.began(1)
		t.isRun("the other principal's answer", t.meanwhile(t.principal("other"), withBody("another")), 2)
		t.open(0)
		t.isRun("the first principal's answer", <-first, 1)
		t.ran(2)
	}, draft("5")).ifHas(needsAuthority),
	must("principals-anonymous", "A client without credentials does not get the answer of a client with credentials", func(t *trial) {
		t.first(t.principal("one"))
		t.isRun("the answer without credentials", t.send(), 2)
		t.ran(2)
	}, draft("5")).ifHas(needsAuthority),
	extension("api-keys-apart", "Two API keys with the same idempotency key are kept apart", func(t *trial) {
		one, other := replacing("X-Api-Key", "one-"+t.key), replacing("X-Api-Key", "other-"+t.key)
		first := t.first(one)
		t.isRun("the other tenant's answer", t.send(other), 2)
		t.repeats("the first tenant's retry", t.again(one), first)
		t.ran(2)
	}, draft("5"), ours),
	extension("hosts-apart", "Two virtual hosts with the same key are kept apart", func(t *trial) {
		first := t.first(withHost("one.example"))
		t.isRun("the other host's answer", t.send(withHost("other.example")), 2)
		t.repeats("the first host's retry", t.again(withHost("ONE.example")), first)
		t.ran(2)
	}, ours),
}

// principal gives a request the credentials of a principal.
func (t *trial) principal(name string) change {
	return with("Authorization", "Bearer "+name+"-"+t.key)
}

var methodCases = []Case{
	should("safe-get", "A GET with a key runs each time", func(t *trial) {
		for run := range 2 {
			t.isRun("the answer", t.send(withMethod(http.MethodGet), withBody("")), run+1)
		}
		t.ran(2)
	}, rfc(9110, "9.2.1"), stripe, adyen),
	should("safe-head", "A HEAD with a key runs each time, and its answer has no body", func(t *trial) {
		l := t.dial()
		for run, method := range []string{http.MethodHead, http.MethodHead, http.MethodPost} {
			body := ""
			if method == http.MethodPost {
				body = "x"
			}
			t.must(l.send(t.request(withMethod(method), withBody(body), withKey(t.numbered(run/2)))))
			t.isRun("the answer to "+method, l.reply(method), run+1)
		}
		t.ran(3)
	}, rfc(9110, "9.3.2"), rfc(9112, "6.3")),
	should("safe-options", "An OPTIONS with a key runs each time", func(t *trial) {
		for run := range 2 {
			t.isRun("the answer", t.send(withMethod(http.MethodOptions), withBody("")), run+1)
		}
		t.ran(2)
	}, rfc(9110, "9.2.1"), rfc(9110, "9.3.7")),
	practice("safe-after", "A GET with the key of a POST is neither refused nor answered from its record", func(t *trial) {
		t.first()
		t.isRun("the answer to GET", t.send(withMethod(http.MethodGet), withBody("")), 2)
		t.ran(2)
	}, rfc(9110, "9.2.1"), stripe),
	must("patch", "A PATCH is guarded like a POST", func(t *trial) { t.guarded(http.MethodPatch) }, draft("1"), zuora),
	extension("put-delete", "PUT, DELETE and unknown methods are guarded", func(t *trial) {
		for i, method := range []string{http.MethodPut, http.MethodDelete, "PROPPATCH"} {
			changes := []change{withMethod(method), withKey(t.numbered(i))}
			first := t.send(changes...)
			t.isRun("the answer to "+method, first, i+1)
			t.repeats("the retry's answer", t.again(changes...), first)
		}
		t.ran(3)
	}, ours),
	must("target-as-sent", "The origin gets the request target unchanged", func(t *trial) {
		const rest = "a%2Fb;c/%7e/%41/./d//e?x=%41;y&&z=+%20&z"
		t.first(withPath(rest))
		if seen := t.seen(0); len(seen) == 1 && !strings.HasSuffix(seen[0].Target, prefix+t.id+"/"+rest) {
			t.wrongf("the origin got the target %s", seen[0].Target)
		}
	}, rfc(9110, "7.7")),
	must("target-absolute", "An absolute request target is guarded like a relative one", func(t *trial) {
		absolute := func(r *request) { r.target = "http://" + r.host + r.target }
		first, _ := t.replayed(absolute)
		t.repeats("the answer to the path alone", t.again(), first)
		t.ran(1)
	}, rfc(9112, "3.2.2"), rfc(9110, "7.1")),
	must("upgrade-around", "An Upgrade to h2c does not bypass the guard", func(t *trial) {
		a := usual()
		a.Upgrade = "h2c"
		t.plays(a)
		requests := [][]change{{withMethod(http.MethodGet), withBody("")}, {withKey(t.numbered(2))}}
		if t.kit.terms.has[needsOptional] {
			requests = append(requests, []change{without("Idempotency-Key")})
		}
		for i, changes := range requests {
			t.isRun("the answer to an offer", t.send(append(changes, offer...)...), i+1)
		}
		t.ran(len(requests))
	}, rfc(9110, "7.8"), rfc(9110, "7.6.1")),
	extension("upgrade-offered", "A request that offers h2c is still guarded", func(t *trial) { t.replayed(offer...) }, rfc(9110, "7.8"), ours),
	extension("upgrade", "An Upgrade to another protocol passes", func(t *trial) {
		t.plays(originAnswer{Upgrade: "conform"})
		l := t.dial()
		t.must(l.send(t.request(withMethod(http.MethodGet), withBody(""), with("Connection", "Upgrade"), with("Upgrade", "conform"))))
		if a := l.upgraded(); a.err != nil || a.status != http.StatusSwitchingProtocols || a.header.Get("Upgrade") != "conform" {
			t.stopf("the request was answered %v", a)
		}
		const said = "GET / HTTP/1.1\r\n\r\n\x00\xff"
		if got := l.echo(said); got != said {
			t.wrongf("%q came back as %q", said, got)
		}
	}, rfc(9110, "7.8"), ours),
}

// offer is the Upgrade to h2c that some clients send with their first request.
var offer = []change{with("Connection", "Upgrade, HTTP2-Settings"), with("Upgrade", "h2c"), with("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA")}

// guarded checks that the retry of a method is a replay.
func (t *trial) guarded(method string) {
	t.replayed(withMethod(method))
}

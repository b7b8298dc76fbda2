package conform

import (
	"bytes"
	"net/http"
	"time"
)

var failureCases = []Case{
	{
		ID: "client-gone", Title: "A request whose client has gone away is done once all the same", Level: Must,
		Sources:  []Source{draft("1"), stripeError, adyen, paypal},
		Sent:     "a request, whose connection ends while the origin works on it; the origin answers; the same request again.",
		Expected: "the second one gets the answer that the first one did not wait for.",
		Ran:      "once",
		check: func(t *trial) {
			t.vanish()
			t.open(0)
			a := t.again()
			t.isRun("the retry's answer", a, 1)
			t.ran(1)
		},
	},
	{
		ID: "client-gone-running", Title: "While a request is done whose client has gone away, a retry does not run", Level: Must,
		Sources:  []Source{draft("2.6"), draft("1")},
		Sent:     "a request, whose connection ends while the origin works on it, and the same request again before the origin answers.",
		Expected: "the second one is refused with 409, or waits and gets the origin's answer.",
		Ran:      "once",
		check: func(t *trial) {
			t.vanish()
			retry := t.sending()
			t.pause(300 * time.Millisecond)
			t.open(0)
			if a := <-retry; a.err != nil || a.run() == 0 {
				t.refused("the retry", a, t.kit.terms.conflict)
			} else {
				t.isRun("the retry's answer", a, 1)
			}
			t.isRun("the answer afterwards", t.again(), 1)
			t.ran(1)
		},
	},
	{
		ID: "body-cut", Title: "A request that is cut off in its body does not run, and its key is free", Level: Must,
		Sources:  []Source{rfc(9112, "8"), stripe},
		Sent:     "half of a request's body, after which the connection ends, by length and in chunks; then the whole request.",
		Expected: "the origin's answer to the whole request.",
		Ran:      "once, with the whole body",
		check: func(t *trial) {
			for _, changes := range [][]change{nil, {withChunks()}} {
				l := t.dial()
				text := t.request(changes...).bytes()
				_, err := l.Write(text[:len(text)-9])
				t.must(err)
				t.must(l.Close())
			}
			t.pause(100 * time.Millisecond)
			t.isRun("the answer to the whole request", t.again(), 1)
			if seen := t.seen(0); len(seen) > 0 && (seen[0].Broken || string(seen[0].Body) != `{"amount":1200}`) {
				t.wrongf("the origin ran with the body %s", excerpt(seen[0].Body))
			}
			t.ran(1)
		},
	},
	{
		ID: "origin-hangs-up", Title: "When the origin hangs up, no success is made up", Level: Must,
		Sources:  []Source{rfc(9110, "15.6.3"), rfc(9112, "8")},
		Sent:     "a request on which the origin hangs up without an answer, and then answers; the same again.",
		Expected: "the first one gets 500 or more, or no answer; the second one the answer of a second run, or a refusal.",
		Ran:      "once or twice",
		check: func(t *trial) {
			t.plays(Answer{Break: BreakBefore}, usual())
			if a := t.send(); a.err == nil && !isFailure(a.status) {
				t.wrongf("nobody answered, and the client got %v", a)
			}
			t.orRefused(t.again())
		},
	},
	{
		ID: "sent-once", Title: "What may have run is not sent again by itself", Level: Must,
		Sources:  []Source{rfc(9110, "9.2.2"), ours},
		Sent:     "for requests with a body and without one: eight that the origin answers, and eight on which it hangs up, after which connections that were kept are dead.",
		Expected: "no success for those on which it hung up.",
		Ran:      "once for each request: the target does not repeat it on its own",
		check: func(t *trial) {
			for round, body := range []string{`{"amount":1200}`, ""} {
				t.plays(usual(), usual(), usual(), usual(), usual(), usual(), usual(), usual(), Answer{Break: BreakBefore})
				for i := range 16 {
					a := t.send(withKey(t.numbered(100*round+i)), withBody(body))
					if i >= 8 && a.err == nil && !isFailure(a.status) {
						t.wrongf("nobody answered, and the client got %v", a)
					}
				}
				t.ran(16)
			}
		},
	},
	{
		ID: "answer-cut", Title: "An answer that breaks off is neither passed on as whole nor replayed", Level: Must,
		Sources:  []Source{rfc(9112, "8"), rfc(9111, "3.3")},
		Sent:     "a request to which the origin sends less than its Content-Length and hangs up, and then answers; the same again.",
		Expected: "the first one gets 500 or more, or an answer that breaks off; the second one the answer of a second run, or a refusal.",
		Ran:      "once or twice",
		check:    func(t *trial) { t.cut(false) },
	},
	{
		ID: "answer-cut-chunks", Title: "An answer without its last chunk is neither passed on as whole nor replayed", Level: Must,
		Sources:  []Source{rfc(9112, "8"), rfc(9112, "7.1")},
		Sent:     "a request to which the origin sends a chunk, and not the last one, and hangs up, and then answers; the same again.",
		Expected: "the first one gets 500 or more, or an answer that breaks off; the second one the answer of a second run, or a refusal.",
		Ran:      "once or twice",
		check:    func(t *trial) { t.cut(true) },
	},
	{
		ID: "restart", Title: "An answer outlives a restart of the target", Level: Should,
		Sources: []Source{draft("2.3"), stripe}, needs: needsRestart, alone: true,
		Sent:     "a request, and the same again after the target was stopped and started.",
		Expected: "the second answer repeats the first.",
		Ran:      "once",
		check: func(t *trial) {
			first := t.first()
			if err := t.kit.options.Restart(t.ctx); err != nil {
				t.stopf("the target could not be restarted: %v", err)
			}
			t.repeats("the answer after the restart", t.again(), first)
			t.ran(1)
		},
	},
}

// vanish sends the usual request to an origin that waits, and ends the connection when it
// is there.
func (t *trial) vanish() {
	t.plays(held())
	l := t.dial()
	t.must(l.send(t.request()))
	t.began(1)
	t.must(l.Close())
	// Until the target has noticed, it is as if the client were there.
	t.pause(200 * time.Millisecond)
}

// isFailure reports whether a status says that there is no answer.
func isFailure(status int) bool { return status >= http.StatusInternalServerError }

// orRefused checks what a retry gets after an attempt without an outcome.
func (t *trial) orRefused(a *reply) {
	if a.err == nil && a.status >= 400 && a.run() == 0 {
		return
	}
	t.isRun("the retry's answer", a, 2)
	t.ran(2)
}

// cut checks what becomes of an answer that breaks off.
func (t *trial) cut(chunked bool) {
	part := []byte("the beginning of something")
	t.plays(Answer{Status: 200, Body: part, Break: BreakWithin, Chunked: chunked}, usual())
	if a := t.send(); a.err == nil && !isFailure(a.status) {
		t.wrongf("the answer broke off, and the client got it as a whole one: %v", a)
	}
	again := t.again()
	if bytes.HasPrefix(again.body, part) {
		t.wrongf("what had broken off was replayed: %v", again)
	}
	t.orRefused(again)
}

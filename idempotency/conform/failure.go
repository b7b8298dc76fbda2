package conform

import (
	"bytes"
	"io"
	"net/http"
	"time"
)

var failureCases = []Case{
	must("client-gone", "A request whose client disconnects still runs once", func(t *trial) {
		t.vanish()
		t.open(0)
		a := t.again()
		t.isRun("the retry's answer", a, 1)
		t.ran(1)
	}, draft("1"), stripeError, adyen, paypal),
	must("client-gone-running", "A retry does not run while the request of a disconnected client runs", func(t *trial) {
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
	}, draft("2.6"), draft("1")),
	must("client-gone-answer", "A client that lost the connection during the answer gets the whole answer", func(t *trial) {
		t.plays(originAnswer{Size: 512 << 10})
		t.lose()
		t.isWhole("the retry's answer", t.again(), 512<<10)
		t.ran(1)
	}, draft("1"), stripeError),
	must("client-gone-huge", "A client that lost the connection during an answer that is too long to store does not run again", func(t *trial) {
		t.plays(originAnswer{Size: 8 << 20})
		t.lose()
		if a := t.again(); a.err != nil || a.status < 400 || a.run() != 0 {
			t.isWhole("the retry's answer", a, 8<<20)
		}
		t.ran(1)
	}, draft("1"), ours),
	should("client-slow", "A client that does not read its answer does not block other clients", func(t *trial) {
		t.plays(originAnswer{Size: 512 << 10})
		t.must(t.dial().send(t.request()))
		t.began(1)
		t.isWhole("the second answer", t.again(), 512<<10)
		t.ran(1)
	}, draft("2.6"), ours),
	must("body-slow", "A slow and a fast duplicate run once together", func(t *trial) {
		l := t.dial()
		text := t.request().bytes()
		_, err := l.Write(text[:len(text)-9])
		t.must(err)
		t.pause(100 * time.Millisecond)
		quick := t.send()
		_, err = l.Write(text[len(text)-9:])
		t.must(err)
		slow := l.reply(http.MethodPost)
		if quick.err == nil && quick.run() == 0 {
			quick, slow = slow, quick
		}
		t.isRun("one of both answers", quick, 1)
		t.isAmong(slow, quick)
		if seen := t.seen(0); len(seen) > 0 && string(seen[0].Body) != `{"amount":1200}` {
			t.wrongf("the origin ran with the body %s", excerpt(seen[0].Body))
		}
		t.ran(1)
	}, draft("2.6")),
	must("body-cut", "A request with a truncated body does not run, and its key stays free", func(t *trial) {
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
	}, rfc(9112, "8"), stripe),
	must("origin-hangs-up", "If the origin closes the connection, the client gets no success", func(t *trial) {
		t.plays(originAnswer{Break: breakBefore}, usual())
		if a := t.send(); a.err == nil && !isFailure(a.status) {
			t.wrongf("the origin did not answer, and the client got %v", a)
		}
		t.orRefused(t.outcome())
	}, rfc(9110, "15.6.3"), rfc(9112, "8")),
	must("sent-once", "The target does not resend a request that may have run", func(t *trial) {
		for round, body := range []string{`{"amount":1200}`, ""} {
			t.plays(usual(), usual(), usual(), usual(), usual(), usual(), usual(), usual(), originAnswer{Break: breakBefore})
			for i := range 16 {
				a := t.send(withKey(t.numbered(100*round+i)), withBody(body))
				if i >= 8 && a.err == nil && !isFailure(a.status) {
					t.wrongf("the origin did not answer, and the client got %v", a)
				}
			}
			t.ran(16)
		}
	}, rfc(9110, "9.2.2"), ours),
	must("answer-cut", "A truncated answer is neither passed on as whole nor replayed", func(t *trial) { t.cut(false) }, rfc(9112, "8"), rfc(9111, "3.3")),
	must("answer-cut-chunks", "An answer without its last chunk is neither passed on as whole nor replayed", func(t *trial) { t.cut(true) }, rfc(9112, "8"), rfc(9112, "7.1")),
	should("restart", "A stored answer survives a restart of the target", func(t *trial) {
		first := t.first()
		if err := t.kit.options.Restart(t.ctx); err != nil {
			t.stopf("the target could not be restarted: %v", err)
		}
		t.repeats("the answer after the restart", t.again(), first)
		t.ran(1)
	}, draft("2.3"), stripe).ifHas(needsRestart).byItself(),
}

// vanish sends the usual request to an origin that waits, and closes the connection when the
// request has arrived.
func (t *trial) vanish() {
	t.plays(held())
	l := t.dial()
	t.must(l.send(t.request()))
	t.began(1)
	t.must(l.Close())
	// The target needs a moment to notice.
	t.pause(300 * time.Millisecond)
}

// lose sends the usual request, reads the beginning of the answer, and closes the connection.
func (t *trial) lose() {
	l := t.dial()
	t.must(l.send(t.request()))
	if _, err := io.ReadFull(l.r, make([]byte, 1000)); err != nil {
		t.stopf("nothing came: %s", plain(err))
	}
	t.must(l.Close())
}

// isWhole checks that an answer has all of a pattern.
func (t *trial) isWhole(what string, a *reply, size int) {
	if a.err != nil || !bytes.Equal(a.body, pattern(size)) {
		t.wrongf("%s has not the %d bytes that the origin sent, but is %v", what, size, a)
	}
}

// isFailure reports whether a status says that there is no answer.
func isFailure(status int) bool { return status >= http.StatusInternalServerError }

// orRefused checks the answer of a retry after an attempt without an outcome.
func (t *trial) orRefused(a *reply) {
	if a.err == nil && a.status >= 400 && a.run() == 0 {
		return
	}
	t.isRun("the retry's answer", a, 2)
	t.ran(2)
}

// cut checks what the target makes of a truncated answer.
func (t *trial) cut(chunked bool) {
	part := []byte("the beginning of something")
	t.plays(originAnswer{Status: 200, Body: part, Break: breakWithin, Chunked: chunked}, usual())
	if a := t.send(); a.err == nil && !isFailure(a.status) {
		t.wrongf("the answer broke off, and the client got it as a whole one: %v", a)
	}
	again := t.outcome()
	if bytes.HasPrefix(again.body, part) {
		t.wrongf("what had broken off was replayed: %v", again)
	}
	t.orRefused(again)
}

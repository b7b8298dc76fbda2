package conform

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
)

var contentCases = []Case{
	must("body-bytes", "An answer's body is replayed byte for byte", func(t *trial) {
		body := make([]byte, 1024)
		for i := range body {
			body[i] = byte(i)
		}
		t.content(originAnswer{Header: []fieldLine{field("Content-Type", "application/octet-stream")}, Body: body}, body)
	}, draft("2.6"), rfc(9110, "6.4")),
	must("body-empty", "An empty body is replayed as an empty body", func(t *trial) {
		t.plays(originAnswer{Status: 200}, usual())
		t.empty(http.StatusOK)
	}, draft("2.6"), rfc(9112, "6.3")),
	must("status-204", "A 204 is replayed as a 204, without a length", func(t *trial) {
		t.plays(originAnswer{Status: http.StatusNoContent}, usual())
		for _, a := range t.empty(http.StatusNoContent) {
			if a.chunked || len(a.values("Content-Length")) > 0 {
				t.wrongf("a 204 has a length: %v", a.values("Content-Length"))
			}
		}
	}, rfc(9110, "15.3.5"), rfc(9110, "8.6")),
	should("status-205", "A 205 is replayed as a 205, without a body", func(t *trial) {
		t.plays(originAnswer{Status: http.StatusResetContent}, usual())
		t.empty(http.StatusResetContent)
	}, rfc(9110, "15.3.6"), draft("2.6")),
	should("status-unusual", "An unregistered status is replayed unchanged", func(t *trial) {
		for i, status := range []int{202, 206, 207, 226, 299, 418} {
			t.plays(usual().as(status))
			key := withKey(t.numbered(i))
			first := t.first(key)
			t.isStatus("the first answer", first, status)
			t.repeats("the retry's answer", t.again(key), first)
			t.ran(1)
		}
	}, rfc(9110, "15"), draft("2.6")),
	practice("body-large", "A large answer is replayed whole", func(t *trial) { t.content(originAnswer{Size: 512 << 10}, pattern(512<<10)) }, draft("2.6"), ours),
	must("body-huge", "An answer that is too long to store arrives, and its retry does not run", func(t *trial) {
		body := pattern(3 << 20)
		t.plays(originAnswer{Size: len(body)})
		first := t.first()
		if !bytes.Equal(first.body, body) {
			t.wrongf("the first answer is not whole: %v", first)
		}
		again := t.again()
		if refused := again.err == nil && again.status >= 400 && again.run() == 0; !refused {
			t.repeats("the retry's answer", again, first)
		}
		t.ran(1)
	}, draft("2.6"), ours),
	should("request-large", "A large request arrives whole, and differs from one with another last byte", func(t *trial) {
		body := string(pattern(2 << 20))
		t.replayed(withBody(body))
		t.refused("the other request", t.again(withBody(body[:len(body)-1]+"!")), t.kit.terms.mismatch)
		if seen := t.seen(0); len(seen) > 0 && string(seen[0].Body) != body {
			t.wrongf("the origin got %d bytes", len(seen[0].Body))
		}
		t.ran(1)
	}, draft("2.4"), rfc(9110, "6.4")),
	must("request-huge", "A request that is too long for the target is refused, not truncated", func(t *trial) {
		body := string(pattern(9 << 20))
		for i, changes := range [][]change{{withBody(body)}, {withBody(body), withChunks()}} {
			a := t.send(append(changes, withKey(t.numbered(i)))...)
			if a.err == nil && a.run() == 0 && a.status != http.StatusRequestEntityTooLarge {
				t.wrongf("the request was answered %v", a)
			}
		}
		for _, s := range t.seen(0) {
			if len(s.Body) != len(body) {
				t.wrongf("the origin ran with %d bytes of %d", len(s.Body), len(body))
			}
		}
	}, rfc(9110, "15.5.14"), rfc(9110, "6.4")),
	must("body-chunked", "An answer of unknown length is replayed whole", func(t *trial) { t.content(originAnswer{Chunked: true, Body: []byte("in chunks")}, []byte("in chunks")) }, draft("2.6"), rfc(9112, "7.1")),
	should("body-encoded", "A compressed answer stays compressed", func(t *trial) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, err := z.Write(bytes.Repeat([]byte("all work and no play "), 100))
		t.must(err)
		t.must(z.Close())
		a := originAnswer{Header: []fieldLine{field("Content-Encoding", "gzip"), field("Vary", "Accept-Encoding"), field("Content-Type", "text/plain")}, Body: packed.Bytes()}
		for _, got := range t.content(a, packed.Bytes(), with("Accept-Encoding", "gzip")) {
			if got.header.Get("Content-Encoding") != "gzip" || got.header.Get("Vary") != "Accept-Encoding" {
				t.wrongf("an answer has Content-Encoding: %s and Vary: %s", got.header.Get("Content-Encoding"), got.header.Get("Vary"))
			}
		}
	}, rfc(9110, "8.4"), rfc(9110, "12.5.5")),
	should("body-untyped", "An answer without a media type is replayed without one", func(t *trial) {
		t.plays(originAnswer{Header: []fieldLine{{Name: "Content-Type"}}, Body: []byte("<html>")})
		first, again := t.replayed()
		if !slices.Equal(first.values("Content-Type"), again.values("Content-Type")) {
			t.wrongf("the first answer has Content-Type: %q, the retry's %q", first.values("Content-Type"), again.values("Content-Type"))
		}
	}, rfc(9110, "8.3"), draft("2.6")),
	extension("trailers", "The trailer of an answer arrives, and is replayed", func(t *trial) {
		a := originAnswer{Body: []byte("with a sum"), Trailer: []fieldLine{field("Conform-Sum", "run {run}"), field("Conform-Count", "10")}}
		for i, got := range t.content(a, a.Body, with("TE", "trailers"), with("Connection", "TE")) {
			if got.trailer.Get("Conform-Sum") != "run 1" || got.trailer.Get("Conform-Count") != "10" {
				t.wrongf("answer %d has the trailer %v", i+1, got.trailer)
			}
		}
	}, rfc(9110, "6.5"), ours),
	must("informational", "An informational answer is passed on, and is not stored as the answer", func(t *trial) {
		a := usual()
		a.Early = []earlyAnswer{{Status: http.StatusEarlyHints, Header: []fieldLine{field("Link", "</style.css>; rel=preload")}}}
		t.plays(a)
		first := t.first()
		if !slices.Equal(first.early, []int{http.StatusEarlyHints}) {
			t.wrongf("before the first answer came %v", first.early)
		}
		t.isStatus("the first answer", first, http.StatusCreated)
		again := t.again()
		if len(again.early) > 0 {
			t.wrongf("before the retry's answer came %v", again.early)
		}
		t.repeats("the retry's answer", again, first)
		t.ran(1)
	}, rfc(9110, "15.2"), rfc(8297, "2")),
	extension("stream", "An event stream arrives event by event, and is replayed whole", func(t *trial) {
		l, body := t.stream()
		for i := range 2 {
			t.event(body, i)
			t.open(1)
		}
		t.event(body, 2)
		if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
			t.wrongf("after the last event came %q, and %v", rest, err)
		}
		_ = l.Close()
		t.open(0)
		t.streamed(t.again())
	}, ours),
	extension("stream-running", "A duplicate does not run while the stream is sent", func(t *trial) {
		_, body := t.stream()
		t.event(body, 0)
		t.refused("the duplicate", t.meanwhile(), t.kit.terms.conflict)
		t.open(0)
		t.event(body, 1)
		t.event(body, 2)
		t.streamed(t.again())
	}, draft("2.6"), ours),
	extension("stream-lost", "A client that lost the connection during a stream gets the whole stream", func(t *trial) {
		l, body := t.stream()
		t.event(body, 0)
		t.must(l.Close())
		t.pause(200 * time.Millisecond)
		t.open(0)
		t.streamed(t.again())
	}, draft("1"), ours),
}

// stream sends the usual request to an origin that answers with three events. Each event but the
// first waits for open. It returns the connection and the body.
func (t *trial) stream() (*line, io.Reader) {
	t.plays(originAnswer{
		Status: 200, Header: []fieldLine{field("Content-Type", "text/event-stream")},
		Body: []byte(eventOf(0)), Pieces: []string{eventOf(1), eventOf(2)},
	})
	l := t.dial()
	t.must(l.send(t.request()))
	if !l.await(t.patience()) {
		t.stopf("nothing came of the stream while it was made")
	}
	events, err := l.headOf(http.MethodPost, new(reply))
	if err != nil {
		t.stopf("nothing came of the stream while it was made: %s", plain(err))
	}
	return l, events
}

// event checks that an event arrives.
func (t *trial) event(body io.Reader, i int) {
	got := make([]byte, len(eventOf(i)))
	if n, err := io.ReadFull(body, got); err != nil || string(got) != eventOf(i) {
		t.stopf("the event %d had not arrived before the next one, but %q", i, got[:n])
	}
}

// streamed checks that an answer has all events.
func (t *trial) streamed(a *reply) {
	if a.err != nil || a.status != http.StatusOK || string(a.body) != eventOf(0)+eventOf(1)+eventOf(2) {
		t.wrongf("the retry's answer is %v", a)
	}
	t.ran(1)
}

func eventOf(i int) string { return "data: " + strconv.Itoa(i) + "\n\n" }

// content checks that an answer with that body arrives, and again for the retry. It returns both
// answers.
func (t *trial) content(a originAnswer, body []byte, changes ...change) []*reply {
	t.plays(a)
	first := t.first(changes...)
	again := t.again(changes...)
	for what, got := range map[string]*reply{"the first answer": first, "the retry's answer": again} {
		if got.err != nil || !bytes.Equal(got.body, body) {
			t.wrongf("%s does not have the body that the origin sent (%d bytes), but is %v", what, len(body), got)
		}
	}
	t.repeats("the retry's answer", again, first)
	t.ran(1)
	return []*reply{first, again}
}

// empty sends the usual request twice on one connection, to an origin that answers with the
// status only, and then another request. It returns the first two answers.
func (t *trial) empty(status int) []*reply {
	l := t.dial()
	var answers []*reply
	for range 2 {
		t.must(l.send(t.request()))
		a := l.reply(http.MethodPost)
		t.isStatus("the answer", a, status)
		if len(a.body) > 0 {
			t.wrongf("the answer has a body: %v", a)
		}
		if a.err != nil {
			t.stopf("the connection is not of use any more: %v", a)
		}
		answers = append(answers, a)
	}
	t.must(l.send(t.request(withKey(t.numbered(2)))))
	t.isRun("the answer to the next request on the connection", l.reply(http.MethodPost), 2)
	t.ran(2)
	return answers
}

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
		t.wrongf("%s does not have the %d bytes that the origin sent, but is %v", what, size, a)
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

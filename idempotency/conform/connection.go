package conform

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

var connectionCases = []Case{
	must("connection-reused", "The connection can be used after a replay and after a refusal", func(t *trial) {
		l := t.dial()
		ask := func(changes ...change) *reply {
			t.must(l.send(t.request(changes...)))
			a := l.reply(http.MethodPost)
			if a.err != nil {
				t.stopf("the next request on the connection got %v", a)
			}
			if a.closes {
				l = t.dial()
			}
			return a
		}
		first := ask()
		t.isRun("the first answer", first, 1)
		t.pause(50 * time.Millisecond)
		t.repeats("the retry's answer", ask(), first)
		ask(withBody("another"))
		ask(withKey(`"`))
		if a := ask(withKey(t.numbered(2))); a.key() != t.numbered(2) {
			t.wrongf("the answer to the last request on the connection is %v", a)
		}
	}, rfc(9112, "9.3"), rfc(9112, "6.3")),
	must("connection-close", "A client that sends Connection: close gets its answer, and the connection ends", func(t *trial) {
		for range 2 {
			l := t.dial()
			t.must(l.send(t.request(with("Connection", "close"))))
			t.isRun("the answer", l.reply(http.MethodPost), 1)
			if more := l.reply(http.MethodPost); more.status != 0 || plain(more.err) != "the connection ended" {
				t.wrongf("after the answer came %v", more)
			}
			t.again()
		}
		t.ran(1)
	}, rfc(9112, "9.6")),
	must("pipelined", "Pipelined requests are answered in their order", func(t *trial) {
		var requests []*request
		for i := range 4 {
			requests = append(requests, t.request(withKey(t.numbered(i))))
		}
		l := t.dial()
		t.must(l.send(requests...))
		for i := range requests {
			if a := l.reply(http.MethodPost); a.err != nil || a.key() != t.numbered(i) {
				t.stopf("answer %d is %v, made for the key %s", i+1, a, a.key())
			}
		}
		t.ran(4)
	}, rfc(9112, "9.3.2")),
	must("pipelined-duplicate", "A pipelined duplicate does not run", func(t *trial) {
		l := t.dial()
		t.must(l.send(t.request(), t.request(), t.request()))
		first := l.reply(http.MethodPost)
		t.isRun("the first answer", first, 1)
		for range 2 {
			t.isAmong(l.reply(http.MethodPost), first)
		}
		t.ran(1)
	}, draft("2.6"), rfc(9112, "9.3.2")),
	must("http10", "An HTTP/1.0 client gets no chunked answer", func(t *trial) {
		t.plays(originAnswer{Chunked: true, Body: []byte("to whom it may concern"), Trailer: []fieldLine{field("Conform-Sum", "1")}})
		old := func(r *request) { r.version = "HTTP/1.0" }
		first := t.first(old)
		again := t.again(old)
		for what, a := range map[string]*reply{"the first answer": first, "the retry's answer": again} {
			if a.chunked || string(a.body) != "to whom it may concern" {
				t.wrongf("%s to HTTP/1.0 is %v, chunked: %v", what, a, a.chunked)
			}
		}
		t.repeats("the retry's answer", again, first)
		t.repeats("the answer to HTTP/1.1", t.again(), first)
		t.ran(1)
	}, rfc(9112, "6.1"), rfc(9110, "6.2")),
	must("http10-informational", "An HTTP/1.0 client gets no informational answer", func(t *trial) {
		a := usual()
		a.Early = []earlyAnswer{{Status: http.StatusEarlyHints, Header: []fieldLine{field("Link", "</style.css>; rel=preload")}}}
		t.plays(a)
		old := func(r *request) { r.version = "HTTP/1.0" }
		first, again := t.replayed(old)
		for _, a := range []*reply{first, again} {
			if len(a.early) > 0 {
				t.wrongf("before an answer to HTTP/1.0 came %v", a.early)
			}
		}
	}, rfc(9110, "15.2")),
	practice("refusal-arrives", "A refusal arrives although the client still sends its body", func(t *trial) {
		r := t.request(withKey(t.quote(t.key+strings.Repeat("x", 300-len(t.key)))), withBody(strings.Repeat("x", 400_000)))
		all := r.bytes()
		early := len(all) - 100_000
		l := t.dial()
		_, err := l.Write(all[:early])
		if err == nil {
			t.pause(time.Second)
			_, err = l.Write(all[early:])
		}
		if err != nil {
			// Clients give up here, without reading an answer.
			t.wrongf("the request could not be sent: %s", plain(err))
		}
		t.refused("the request", l.reply(r.method), []int{http.StatusBadRequest})
		t.ran(0)
	}, rfc(9112, "9.6")),
	must("expect", "A client that sends Expect: 100-continue gets 100", func(t *trial) {
		first, asked := t.expecting()
		if !asked {
			t.wrongf("the first request did not get 100")
		}
		t.isRun("the first answer", first, 1)
		again, _ := t.expecting()
		t.repeats("the retry's answer", again, first)
		if seen := t.seen(0); len(seen) == 1 && string(seen[0].Body) != `{"amount":1200}` {
			t.wrongf("the origin got the body %s", excerpt(seen[0].Body))
		}
		t.ran(1)
	}, rfc(9110, "10.1.1")),
	must("request-chunked", "A chunked body arrives whole", func(t *trial) {
		body := string(pattern(100 << 10))
		t.replayed(withBody(body), withChunks())
		if seen := t.seen(0); len(seen) > 0 && string(seen[0].Body) != body {
			t.wrongf("the origin got %d bytes of %d, or others", len(seen[0].Body), len(body))
		}
	}, rfc(9112, "7.1")),
	extension("request-trailer", "The trailer of a request arrives", func(t *trial) {
		first := t.first(withChunks("Conform-Sum: 1"))
		t.repeats("the retry's answer", t.again(withChunks("Conform-Sum: 2")), first)
		if seen := t.seen(0); len(seen) > 0 && !slices.Equal(seen[0].Trailer["Conform-Sum"], []string{"1"}) {
			t.wrongf("the origin got the trailer %v", seen[0].Trailer)
		}
		t.ran(1)
	}, rfc(9110, "6.5"), ours),
	must("request-framed-twice", "A request with two framings is not read as two requests", func(t *trial) {
		hidden := string(t.request(withPath("hidden"), withKey(t.numbered(2)), withBody("")).bytes())
		r := t.request(withBody("0\r\n\r\n" + hidden))
		r.fields = append(r.fields, "Transfer-Encoding: chunked")
		l := t.dial()
		t.must(l.send(r))
		a := l.reply(http.MethodPost)
		if a.err != nil {
			t.stopf("the request was answered %v", a)
		}
		second := l.reply(http.MethodPost) // the end of the connection
		if second.status != 0 {
			t.wrongf("the connection went on, and what the body hid was answered %v", second)
		}
		for _, s := range t.seen(0) {
			if strings.Contains(s.Target, "hidden") {
				t.wrongf("what the body hid reached the origin")
			}
		}
	}, rfc(9112, "6.1"), rfc(9112, "11.2")),
	must("request-two-lengths", "A request with a malformed length or chunk does not run", func(t *trial) {
		badChunk := t.request(withBody("zz\r\nabc\r\n0\r\n\r\n"), with("Transfer-Encoding", "chunked"))
		bad := map[string]string{
			"with two lengths":        string(t.request(with("Content-Length", "3")).bytes()),
			"with a length of 1x":     strings.Replace(string(t.request().bytes()), "Content-Length: 15", "Content-Length: 1x", 1),
			"with a length of -1":     strings.Replace(string(t.request().bytes()), "Content-Length: 15", "Content-Length: -1", 1),
			"with a chunk of zz long": strings.Replace(string(badChunk.bytes()), "Content-Length: 19\r\n", "", 1),
		}
		for what, text := range bad {
			l := t.dial()
			_, err := l.Write([]byte(text))
			t.must(err)
			if a := l.reply(http.MethodPost); a.err == nil && (a.status < 400 || a.status > 499) {
				t.wrongf("the request %s was answered %v", what, a)
			}
		}
		t.ran(0)
	}, rfc(9112, "6.3"), rfc(9112, "7.1")),
	should("key-in-trailer", "A key in the trailer is not a key", func(t *trial) {
		late := []change{without("Idempotency-Key"), withChunks("Idempotency-Key: " + t.quoted())}
		t.isRun("the first answer", t.send(late...), 1)
		t.isRun("the second answer", t.send(late...), 2)
		t.ran(2)
	}, rfc(9110, "6.5.1")).ifHas(needsOptional),
	extension("connection-names-key", "A request that names the key in Connection is still guarded", func(t *trial) {
		named := with("Connection", "Idempotency-Key")
		t.replayed(named)
		if seen := t.seen(0); len(seen) > 0 && seen[0].Header.Get("Idempotency-Key") != t.quoted() {
			t.wrongf("the origin got the key %q", seen[0].Header.Get("Idempotency-Key"))
		}
	}, rfc(9110, "7.6.1"), ours),
}

// expecting sends the usual request with Expect: 100-continue. Its body follows after 100, or
// after a while. It reports whether 100 came.
func (t *trial) expecting() (a *reply, asked bool) {
	l := t.dial()
	r := t.request(with("Expect", "100-continue"))
	_, err := l.Write(r.head())
	t.must(err)
	if l.await(t.patience()) {
		begin, err := l.r.Peek(len("HTTP/1.1 100"))
		if err != nil || !strings.HasSuffix(string(begin), " 100") {
			return l.reply(r.method), false
		}
		asked = true
	}
	if _, err := l.Write(r.content()); err != nil {
		return &reply{err: fmt.Errorf("the body could not be sent: %w", err)}, asked
	}
	return l.reply(r.method), asked
}

// rawCases are about the connection between the target and the origin, mostly about answers that
// no HTTP library writes. Their readable answers close the connection, so that they do not
// affect other cases.
var rawCases = []Case{
	must("request-hop", "Hop-by-hop fields do not reach the origin", func(t *trial) {
		hop := []change{with("Connection", "Conform-Hop, Keep-Alive"), with("Conform-Hop", "1"), with("Keep-Alive", "timeout=5"), with("TE", "gzip")}
		requests := [][]change{{withMethod(http.MethodGet), withBody("")}, {}}
		if t.kit.terms.has[needsOptional] {
			requests = append(requests, []change{without("Idempotency-Key")})
		}
		for i, changes := range requests {
			t.isRun("the answer", t.send(append(changes, hop...)...), i+1)
		}
		for _, s := range t.seen(0) {
			for _, name := range []string{"Conform-Hop", "Keep-Alive", "Te"} {
				if values, ok := s.Header[name]; ok {
					t.wrongf("with %s the origin got %s: %s", s.Method, name, strings.Join(values, ", "))
				}
			}
		}
		t.ran(len(requests))
	}, rfc(9110, "7.6.1")).ifHas(needsWire),
	extension("fence", "The origin gets a fencing token that rises with each run of a key, and clients cannot forge it", func(t *trial) {
		t.plays(usual().as(http.StatusTooManyRequests))
		forged := with("Dibs-Fence", "18446744073709551615")
		for run := range 3 {
			t.isRun("the answer", t.again(forged), run+1)
		}
		last := uint64(0)
		for _, s := range t.seen(0) {
			fence, err := strconv.ParseUint(strings.Join(s.Header["Dibs-Fence"], ", "), 10, 64)
			if err != nil || fence <= last || fence == 1<<64-1 {
				t.wrongf("run %d got the fence %q after %d", s.Run, s.Header["Dibs-Fence"], last)
			}
			last = fence
		}
		t.isRun("the answer to GET", t.send(forged, withMethod(http.MethodGet), withBody("")), 4)
		if seen := t.seen(0); len(seen) == 4 && len(seen[3].Header["Dibs-Fence"]) > 0 {
			t.wrongf("a request that is not guarded came with the fence %q", seen[3].Header["Dibs-Fence"])
		}
		t.ran(4)
	}, ours).ifHas(needsWire),
	extension("fields-folded", "A client cannot forge the target's own fields with _ in place of -", func(t *trial) {
		forged := []change{with("Dibs_Fence", "999999999999999999"), with("dibs_fence", "1"), with("Idempotency_Key", t.numbered(2)), with("X_Forwarded_For", "127.0.0.1")}
		for i, changes := range [][]change{{}, {withMethod(http.MethodGet), withBody("")}} {
			t.isRun("the answer", t.send(append(changes, forged...)...), i+1)
		}
		for _, s := range t.seen(0) {
			for name, values := range s.Header {
				switch strings.ToLower(name) {
				case "dibs_fence", "idempotency_key", "x_forwarded_for":
					t.wrongf("with %s the origin got %s: %s", s.Method, name, strings.Join(values, ", "))
				}
			}
		}
		t.ran(2)
	}, ours).ifHas(needsWire),
	must("origin-closes", "An answer that ends with the connection is passed on whole", func(t *trial) {
		for i, version := range []string{"HTTP/1.1", "HTTP/1.0"} {
			t.plays(originAnswer{Raw: []byte(version + " 201 Created\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nrun {run} of {key}\n")})
			key := withKey(t.numbered(i))
			first := t.first(key)
			if first.status != http.StatusCreated || first.key() != t.numbered(i) {
				t.wrongf("the answer of %s is %v", version, first)
			}
			t.repeats("the retry's answer", t.again(key), first)
			t.ran(1)
		}
	}, rfc(9112, "6.3")).ifHas(needsWire),
	must("origin-chunks", "An answer with chunk extensions, or with a length as well, is read as chunks", func(t *trial) {
		t.plays(originAnswer{Raw: []byte("HTTP/1.1 201 Created\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nConform-Run: {run}\r\nConnection: close\r\n\r\n4;a=1\r\nrun \r\n0A;b\r\nin chunks\n\r\n0\r\n\r\n")})
		first := t.send()
		if first.err == nil && first.status == http.StatusBadGateway {
			t.orRefused(t.outcome())
			return
		}
		t.isStatus("the first answer", first, http.StatusCreated)
		if string(first.body) != "run in chunks\n" {
			t.wrongf("the first answer is %v", first)
		}
		t.repeats("the retry's answer", t.again(), first)
		t.ran(1)
	}, rfc(9112, "6.3"), rfc(9112, "7.1.1")).ifHas(needsWire),
	must("origin-stray", "Bytes after the origin's answer are not taken for another answer", func(t *trial) {
		const stray = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConform-Stray: 1\r\n\r\nstray"
		for round, answer := range []string{
			"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nrun 1 of x",
			"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\na\r\nrun 1 of x\r\n0\r\n\r\n",
			"HTTP/1.1 204 No Content\r\nConform-Run: 1\r\nContent-Length: " + strconv.Itoa(len(stray)) + "\r\n\r\n",
		} {
			t.plays(originAnswer{Raw: []byte(answer + stray), Linger: true}, usual())
			for i := range 5 {
				a := t.send(withKey(t.numbered(10*round + i)))
				if i > 0 {
					t.isRun("the answer to the next request", a, i+1)
				}
				if len(a.values("Conform-Stray")) > 0 || strings.Contains(string(a.body), "stray") {
					t.wrongf("a request was answered with what was written after the answer to another: %v", a)
				}
			}
			t.ran(5)
		}
	}, rfc(9112, "11.1"), rfc(9112, "9.2")).ifHas(needsWire).byItself(),
	must("origin-garbled", "A malformed answer is not passed on", func(t *trial) {
		for i, answer := range []string{
			"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nContent-Length: 11\r\n\r\nrun 1 of xy",
			"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nrun 1 of x\r\n0\r\n\r\n",
			"HTTP/1.1 201 Created\r\nContent-Length: -1\r\n\r\nrun 1 of x",
			"HTTP/1.1 201 Created\r\nContent-Length: 1x\r\n\r\nrun 1 of x",
			"SSH-2.0-OpenSSH_9.9\r\n",
			"HTTP/1.1 2x1 Created\r\nContent-Length: 0\r\n\r\n",
		} {
			t.plays(originAnswer{Raw: []byte(answer)})
			if a := t.send(withKey(t.numbered(i))); a.err == nil && !isFailure(a.status) {
				t.wrongf("the origin wrote %q, and the client got %v", answer, a)
			}
			t.ran(1)
		}
	}, rfc(9112, "6.3"), rfc(9110, "15.6.3")).ifHas(needsWire),
	must("origin-folded", "A folded field is not replayed as two lines", func(t *trial) {
		t.plays(originAnswer{Raw: []byte("HTTP/1.1 201 Created\r\nConform-Fold: one\r\n Conform-Hidden: two\r\nConform-Run: {run}\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")})
		first := t.send()
		if first.err == nil && first.status == http.StatusBadGateway {
			return
		}
		for what, a := range map[string]*reply{"the first answer": first, "the retry's answer": t.again()} {
			if got := strings.Join(strings.Fields(a.header.Get("Conform-Fold")), " "); a.err != nil || got != "one Conform-Hidden: two" {
				t.wrongf("%s has the folded field as %q: %v", what, got, a)
			}
			t.hasNone(what, a, "Conform-Hidden")
		}
		t.ran(1)
	}, rfc(9112, "5.2")).ifHas(needsWire),
}

package conform

import (
	"net/http"
	"strconv"
	"strings"
)

// rawCases are about what is on the wire between the target and the origin, and mostly
// about answers that no HTTP library writes. Those that can be read say that
// the connection ends, so that no other case's request is on its way when it does.
var rawCases = []Case{
	{
		ID: "request-hop", Title: "What was between two neighbours does not reach the origin", Level: Must,
		Sources: []Source{rfc(9110, "7.6.1")}, needs: needsWire,
		Sent:     "a GET, a POST without a key and one with, with Keep-Alive, TE: gzip and a field that Connection names.",
		Expected: "the origin's answers.",
		Ran:      "once for each request, without those fields",
		check: func(t *trial) {
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
		},
	},
	{
		ID: "fence", Title: "The origin is told a number that rises with each run of a key, and only the target tells it", Level: Extension,
		Sources: []Source{ours}, needs: needsWire,
		Sent:     "a request with a Dibs-Fence of its own, to which the origin answers 429, three times; and a GET with such a field.",
		Expected: "the origin's answers.",
		Ran:      "once for each request: Dibs-Fence rises each time, and with GET there is none",
		check: func(t *trial) {
			a := usual()
			a.Status = http.StatusTooManyRequests
			t.plays(a)
			forged := with("Dibs-Fence", "18446744073709551615")
			for run := range 3 {
				t.isRun("the answer", t.again(forged), run+1)
			}
			last := uint64(0)
			for _, s := range t.seen(0) {
				fence, err := strconv.ParseUint(strings.Join(s.Header["Dibs-Fence"], ", "), 10, 64)
				if err != nil || fence <= last || fence == 1<<64-1 {
					t.wrongf("run %d was told the fence %q after %d", s.Run, s.Header["Dibs-Fence"], last)
				}
				last = fence
			}
			t.isRun("the answer to GET", t.send(forged, withMethod(http.MethodGet), withBody("")), 4)
			if seen := t.seen(0); len(seen) == 4 && len(seen[3].Header["Dibs-Fence"]) > 0 {
				t.wrongf("a request that is not guarded came with the fence %q", seen[3].Header["Dibs-Fence"])
			}
			t.ran(4)
		},
	},
	{
		ID: "fields-folded", Title: "A field that is the target's own is not forged with _ in place of -", Level: Extension,
		Sources: []Source{ours}, needs: needsWire,
		Sent:     "a POST with a key and a GET, with Dibs_Fence, dibs_fence, Idempotency_Key and X_Forwarded_For, which CGI, WSGI, Rack and PHP read as if they had been spelled with -.",
		Expected: "the origin's answers.",
		Ran:      "twice, without those fields",
		check: func(t *trial) {
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
		},
	},
	{
		ID: "origin-closes", Title: "An answer that ends with the connection is whole", Level: Must,
		Sources: []Source{rfc(9112, "6.3")}, needs: needsWire,
		Sent:     "requests with keys of their own, to which the origin answers in HTTP/1.1 and in HTTP/1.0, without any length, and closes; each twice.",
		Expected: "each answer has the whole body, and the second ones repeat the first ones.",
		Ran:      "once for each key",
		check: func(t *trial) {
			for i, version := range []string{"HTTP/1.1", "HTTP/1.0"} {
				t.plays(Answer{Raw: []byte(version + " 201 Created\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nrun {run} of {key}\n")})
				key := withKey(t.numbered(i))
				first := t.first(key)
				if first.status != http.StatusCreated || first.key() != t.numbered(i) {
					t.wrongf("the answer of %s is %v", version, first)
				}
				t.repeats("the retry's answer", t.again(key), first)
				t.ran(1)
			}
		},
	},
	{
		ID: "origin-chunks", Title: "Chunks with extensions, and beside a length, are read as chunks", Level: Must,
		Sources: []Source{rfc(9112, "6.3"), rfc(9112, "7.1.1")}, needs: needsWire,
		Sent:     "a request to which the origin answers in chunks with extensions, and with a Content-Length that is wrong, twice.",
		Expected: "both answers have the body of the chunks, or the first is 502 and the second one runs again or is refused.",
		Ran:      "once, if it was answered",
		check: func(t *trial) {
			t.plays(Answer{Raw: []byte("HTTP/1.1 201 Created\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nConform-Run: {run}\r\nConnection: close\r\n\r\n4;a=1\r\nrun \r\n0A;b\r\nin chunks\n\r\n0\r\n\r\n")})
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
		},
	},
	{
		ID: "origin-stray", Title: "What an origin writes after its answer is nobody's answer", Level: Must,
		Sources: []Source{rfc(9112, "11.1"), rfc(9112, "9.2")}, needs: needsWire, alone: true,
		Sent:     "requests with keys of their own, to which the origin answers, and writes another answer after that: after a length, after the last chunk, and after a 204; and four requests after each.",
		Expected: "each gets the answer that was made for it.",
		Ran:      "once for each request",
		check: func(t *trial) {
			const stray = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConform-Stray: 1\r\n\r\nstray"
			for round, answer := range []string{
				"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nrun 1 of x",
				"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\na\r\nrun 1 of x\r\n0\r\n\r\n",
				"HTTP/1.1 204 No Content\r\nConform-Run: 1\r\nContent-Length: " + strconv.Itoa(len(stray)) + "\r\n\r\n",
			} {
				t.plays(Answer{Raw: []byte(answer + stray), Linger: true}, usual())
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
		},
	},
	{
		ID: "origin-garbled", Title: "What cannot be read is not passed on as an answer", Level: Must,
		Sources: []Source{rfc(9112, "6.3"), rfc(9110, "15.6.3")}, needs: needsWire,
		Sent:     "requests with keys of their own, to which the origin answers with two different lengths, with a chunk whose size is no number, with a length that is none, and with what is no HTTP.",
		Expected: "a status of 500 or more, or an answer that breaks off; never a whole one.",
		Ran:      "once for each request",
		check: func(t *trial) {
			for i, answer := range []string{
				"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nContent-Length: 11\r\n\r\nrun 1 of xy",
				"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nrun 1 of x\r\n0\r\n\r\n",
				"HTTP/1.1 201 Created\r\nContent-Length: -1\r\n\r\nrun 1 of x",
				"HTTP/1.1 201 Created\r\nContent-Length: 1x\r\n\r\nrun 1 of x",
				"SSH-2.0-OpenSSH_9.9\r\n",
				"HTTP/1.1 2x1 Created\r\nContent-Length: 0\r\n\r\n",
			} {
				t.plays(Answer{Raw: []byte(answer)})
				if a := t.send(withKey(t.numbered(i))); a.err == nil && !isFailure(a.status) {
					t.wrongf("the origin wrote %q, and the client got %v", answer, a)
				}
				t.ran(1)
			}
		},
	},
	{
		ID: "origin-folded", Title: "A folded field is not replayed as two lines", Level: Must,
		Sources: []Source{rfc(9112, "5.2")}, needs: needsWire,
		Sent:     "a request to which the origin answers with a field that is folded over two lines, the second of which looks like a field, twice.",
		Expected: "answers in which the lines are one, joined by space, or 502.",
		Ran:      "once, if it was answered",
		check: func(t *trial) {
			t.plays(Answer{Raw: []byte("HTTP/1.1 201 Created\r\nConform-Fold: one\r\n Conform-Hidden: two\r\nConform-Run: {run}\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")})
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
		},
	},
}

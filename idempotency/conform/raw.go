package conform

import (
	"net/http"
	"strconv"
	"strings"
)

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

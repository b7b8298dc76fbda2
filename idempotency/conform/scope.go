package conform

import (
	"net/http"
	"strings"
)

var scopeCases = []Case{
	{
		ID: "principals-apart", Title: "Two principals with the same key are kept apart", Level: Must,
		Sources: []Source{draft("5"), whop, solidgate}, needs: needsAuthority,
		check: func(t *trial) {
			one, other := t.principal("one"), t.principal("other")
			first := t.first(one)
			t.isRun("the other principal's answer", t.send(other), 2)
			t.repeats("the first principal's retry", t.again(one), first)
			t.ran(2)
		},
	},
	{
		ID: "principals-blind", Title: "One principal does not learn which keys another has used", Level: Should,
		Sources: []Source{draft("5")}, needs: needsAuthority,
		check: func(t *trial) {
			t.plays(held(), usual())
			first := t.sending(t.principal("one"))
			t.began(1)
			t.isRun("the other principal's answer", t.meanwhile(t.principal("other"), withBody("another")), 2)
			t.open(0)
			t.isRun("the first principal's answer", <-first, 1)
			t.ran(2)
		},
	},
	{
		ID: "principals-anonymous", Title: "A client without credentials does not get the answer of a client with credentials", Level: Must,
		Sources: []Source{draft("5")}, needs: needsAuthority,
		check: func(t *trial) {
			t.first(t.principal("one"))
			t.isRun("the answer without credentials", t.send(), 2)
			t.ran(2)
		},
	},
	{
		ID: "api-keys-apart", Title: "Two API keys with the same idempotency key are kept apart", Level: Extension,
		Sources: []Source{draft("5"), ours},
		check: func(t *trial) {
			one, other := replacing("X-Api-Key", "one-"+t.key), replacing("X-Api-Key", "other-"+t.key)
			first := t.first(one)
			t.isRun("the other tenant's answer", t.send(other), 2)
			t.repeats("the first tenant's retry", t.again(one), first)
			t.ran(2)
		},
	},
	{
		ID: "hosts-apart", Title: "Two virtual hosts with the same key are kept apart", Level: Extension,
		Sources: []Source{ours},
		check: func(t *trial) {
			first := t.first(withHost("one.example"))
			t.isRun("the other host's answer", t.send(withHost("other.example")), 2)
			t.repeats("the first host's retry", t.again(withHost("ONE.example")), first)
			t.ran(2)
		},
	},
}

// principal gives a request the credentials of a principal.
func (t *trial) principal(name string) change {
	return with("Authorization", "Bearer "+name+"-"+t.key)
}

var methodCases = []Case{
	{
		ID: "safe-get", Title: "A GET with a key runs each time", Level: Should,
		Sources: []Source{rfc(9110, "9.2.1"), stripe, adyen},
		check: func(t *trial) {
			for run := range 2 {
				t.isRun("the answer", t.send(withMethod(http.MethodGet), withBody("")), run+1)
			}
			t.ran(2)
		},
	},
	{
		ID: "safe-head", Title: "A HEAD with a key runs each time, and its answer has no body", Level: Should,
		Sources: []Source{rfc(9110, "9.3.2"), rfc(9112, "6.3")},
		check: func(t *trial) {
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
		},
	},
	{
		ID: "safe-options", Title: "An OPTIONS with a key runs each time", Level: Should,
		Sources: []Source{rfc(9110, "9.2.1"), rfc(9110, "9.3.7")},
		check: func(t *trial) {
			for run := range 2 {
				t.isRun("the answer", t.send(withMethod(http.MethodOptions), withBody("")), run+1)
			}
			t.ran(2)
		},
	},
	{
		ID: "safe-after", Title: "A GET with the key of a POST is neither refused nor answered from its record", Level: Practice,
		Sources: []Source{rfc(9110, "9.2.1"), stripe},
		check: func(t *trial) {
			t.first()
			t.isRun("the answer to GET", t.send(withMethod(http.MethodGet), withBody("")), 2)
			t.ran(2)
		},
	},
	{
		ID: "patch", Title: "A PATCH is guarded like a POST", Level: Must,
		Sources: []Source{draft("1"), zuora},
		check:   func(t *trial) { t.guarded(http.MethodPatch) },
	},
	{
		ID: "put-delete", Title: "PUT, DELETE and unknown methods are guarded", Level: Extension,
		Sources: []Source{ours},
		check: func(t *trial) {
			for i, method := range []string{http.MethodPut, http.MethodDelete, "PROPPATCH"} {
				changes := []change{withMethod(method), withKey(t.numbered(i))}
				first := t.send(changes...)
				t.isRun("the answer to "+method, first, i+1)
				t.repeats("the retry's answer", t.again(changes...), first)
			}
			t.ran(3)
		},
	},
	{
		ID: "target-as-sent", Title: "The origin gets the request target unchanged", Level: Must,
		Sources: []Source{rfc(9110, "7.7")},
		check: func(t *trial) {
			const rest = "a%2Fb;c/%7e/%41/./d//e?x=%41;y&&z=+%20&z"
			t.first(withPath(rest))
			if seen := t.seen(0); len(seen) == 1 && !strings.HasSuffix(seen[0].Target, prefix+t.id+"/"+rest) {
				t.wrongf("the origin got the target %s", seen[0].Target)
			}
		},
	},
	{
		ID: "target-absolute", Title: "An absolute request target is guarded like a relative one", Level: Must,
		Sources: []Source{rfc(9112, "3.2.2"), rfc(9110, "7.1")},
		check: func(t *trial) {
			absolute := func(r *request) { r.target = "http://" + r.host + r.target }
			first, _ := t.replayed(absolute)
			t.repeats("the answer to the path alone", t.again(), first)
			t.ran(1)
		},
	},
	{
		ID: "upgrade-around", Title: "An Upgrade to h2c does not bypass the guard", Level: Must,
		Sources: []Source{rfc(9110, "7.8"), rfc(9110, "7.6.1")},
		check: func(t *trial) {
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
		},
	},
	{
		ID: "upgrade-offered", Title: "A request that offers h2c is still guarded", Level: Extension,
		Sources: []Source{rfc(9110, "7.8"), ours},
		check: func(t *trial) {
			t.replayed(offer...)
		},
	},
	{
		ID: "upgrade", Title: "An Upgrade to another protocol passes", Level: Extension,
		Sources: []Source{rfc(9110, "7.8"), ours},
		check: func(t *trial) {
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
		},
	},
}

// offer is the Upgrade to h2c that some clients send with their first request.
var offer = []change{with("Connection", "Upgrade, HTTP2-Settings"), with("Upgrade", "h2c"), with("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA")}

// guarded checks that the retry of a method is a replay.
func (t *trial) guarded(method string) {
	t.replayed(withMethod(method))
}

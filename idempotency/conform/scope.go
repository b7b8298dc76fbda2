package conform

import (
	"net/http"
	"strings"
)

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

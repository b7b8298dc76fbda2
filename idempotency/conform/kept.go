package conform

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

var keptCases = []Case{
	should("kept-errors", "A 4xx answer is replayed", func(t *trial) {
		statuses := []int{400, 402, 404, 410, 422}
		answers := make([]originAnswer, len(statuses))
		for i, status := range statuses {
			answers[i] = usual().as(status)
		}
		t.plays(answers...)
		for i, status := range statuses {
			key := withKey(t.numbered(i))
			first := t.send(key)
			t.isRun("the answer of "+strconv.Itoa(status), first, i+1)
			t.repeats("the retry's answer", t.again(key), first)
		}
		t.ran(len(statuses))
	}, draft("2.6"), stripe, whop),
	should("kept-redirect", "A redirect is replayed", func(t *trial) {
		t.plays(originAnswer{Status: http.StatusSeeOther, Header: []fieldLine{field("Location", "/orders/{run}")}})
		_, again := t.replayed()
		if again.header.Get("Location") != "/orders/1" {
			t.wrongf("the retry is led to %q", again.header.Get("Location"))
		}
	}, draft("2.6"), rfc(9110, "15.4.4")),
	practice("failed-runs-again", "The retry of a 5xx answer runs", func(t *trial) {
		for i, status := range []int{500, 502, 503, 504} {
			t.plays(usual().as(status), usual())
			key := withKey(t.numbered(i))
			t.isStatus("the failure", t.first(key), status)
			second := t.again(key)
			t.isRun("the answer after a "+strconv.Itoa(status), second, 2)
			t.repeats("the third answer", t.again(key), second)
			t.ran(2)
		}
	}, checkout, whop, ours).ifHas(needsFree5xx),
	practice("failed-kept", "A 5xx answer is replayed", func(t *trial) {
		for i, status := range []int{500, 503} {
			t.plays(usual().as(status), usual())
			key := withKey(t.numbered(i))
			t.replayed(key)
		}
	}, stripe).ifHas(needsKeep5xx),
	practice("limited-runs-again", "The retry of a 429 runs", func(t *trial) { t.passing(http.StatusTooManyRequests) }, stripeError, rfc(6585, "4")),
	practice("unauthorized-runs-again", "The retry of a 401 runs", func(t *trial) { t.passing(http.StatusUnauthorized) }, stripeError, rfc(9110, "15.5.2")),
	extension("conflict-runs-again", "The retry of the application's own 409 or 423 runs", func(t *trial) {
		for i, status := range []int{http.StatusConflict, http.StatusLocked} {
			t.passing(status, withKey(t.numbered(i)))
		}
	}, rfc(9110, "15.5.10"), ours),
	extension("later-runs-again", "The retry of an answer with Retry-After runs", func(t *trial) {
		for i, status := range []int{http.StatusForbidden, http.StatusNotFound} {
			t.refusing(status, []fieldLine{field("Retry-After", "1")}, withKey(t.numbered(i)))
		}
	}, rfc(9110, "10.2.3"), ours),
	extension("control-keeps", "The application can have any answer stored", func(t *trial) {
		for i, status := range []int{http.StatusConflict, http.StatusNotFound} {
			a := usual()
			a.Status = status
			a.Header = append(a.Header, field("Idempotency-Control", "max-age=60"))
			if status == http.StatusNotFound {
				a.Header = append(a.Header, field("Retry-After", "1"))
			}
			t.plays(a)
			key := withKey(t.numbered(i))
			t.replayed(key)
		}
	}, ours),
	extension("control-no-store", "The application can have an answer not stored", func(t *trial) {
		t.plays(usual(field("Idempotency-Control", "no-store")), usual())
		t.first()
		second := t.again()
		t.isRun("the second answer", second, 2)
		t.repeats("the third answer", t.again(), second)
		t.ran(2)
	}, ours),
	extension("control-max-age", "The application can set how long an answer is stored", func(t *trial) {
		t.plays(usual(field("Idempotency-Control", "max-age=2")))
		sent := time.Now()
		first := t.first()
		again := t.send()
		if time.Since(sent) < 1500*time.Millisecond {
			t.repeats("the answer at once", again, first)
		}
		until := time.Now().Add(2*time.Second + t.patience())
		for again.run() == 1 && time.Now().Before(until) {
			t.pause(100 * time.Millisecond)
			again = t.send()
		}
		t.isRun("the answer after more than two seconds", again, 2)
	}, ours),
	extension("control-hidden", "The application's instructions about an answer are not passed on", func(t *trial) {
		t.plays(usual(field("Idempotency-Control", "max-age=60")))
		first := t.first()
		for what, a := range map[string]*reply{"the first answer": first, "the retry's answer": t.again(), "the answer to GET": t.send(withMethod(http.MethodGet), withBody(""))} {
			if said := a.values("Idempotency-Control"); a.err != nil || len(said) > 0 {
				t.wrongf("%s is %v, with Idempotency-Control: %s", what, a, strings.Join(said, ", "))
			}
		}
		t.ran(2)
	}, ours),
}

// passing checks that an answer that time or other credentials change is not kept.
func (t *trial) passing(status int, changes ...change) { t.refusing(status, nil, changes...) }

// refusing checks that a refusal with these fields is not kept.
func (t *trial) refusing(status int, fields []fieldLine, changes ...change) {
	t.plays(usual(fields...).as(status), usual())
	t.isStatus("the first answer", t.first(changes...), status)
	second := t.again(changes...)
	t.isRun("the second answer", second, 2)
	t.repeats("the third answer", t.again(changes...), second)
	t.ran(2)
}

package conform

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

var keptCases = []Case{
	{
		ID: "kept-errors", Title: "An error of the client's is an answer like any other", Level: Should,
		Sources:  []Source{draft("2.6"), stripe, whop},
		Sent:     "requests with keys of their own, to which the origin answers 400, 402, 404, 410 and 422; each again.",
		Expected: "each second answer repeats the first.",
		Ran:      "five times",
		check: func(t *trial) {
			statuses := []int{400, 402, 404, 410, 422}
			answers := make([]Answer, len(statuses))
			for i, status := range statuses {
				answers[i] = usual()
				answers[i].Status = status
			}
			t.plays(answers...)
			for i, status := range statuses {
				key := withKey(t.numbered(i))
				first := t.send(key)
				t.isRun("the answer of "+strconv.Itoa(status), first, i+1)
				t.repeats("the retry's answer", t.again(key), first)
			}
			t.ran(len(statuses))
		},
	},
	{
		ID: "kept-redirect", Title: "A redirection is an answer like any other", Level: Should,
		Sources:  []Source{draft("2.6"), rfc(9110, "15.4.4")},
		Sent:     "a request to which the origin answers 303 with a Location, twice.",
		Expected: "the second answer repeats the first, Location included.",
		Ran:      "once",
		check: func(t *trial) {
			t.plays(Answer{Status: http.StatusSeeOther, Header: []Field{field("Location", "/orders/{run}")}})
			first := t.first()
			again := t.again()
			t.repeats("the retry's answer", again, first)
			if again.header.Get("Location") != "/orders/1" {
				t.wrongf("the retry is led to %q", again.header.Get("Location"))
			}
			t.ran(1)
		},
	},
	{
		ID: "failed-runs-again", Title: "After a failure of the server's, the retry runs", Level: Practice,
		Sources: []Source{checkout, whop, ours}, needs: needsFree5xx,
		Sent:     "requests with keys of their own, to which the origin answers 500, 502, 503 and 504, and then 201; each three times.",
		Expected: "the failure, the answer of a second run, and that again.",
		Ran:      "twice for each key",
		check: func(t *trial) {
			for i, status := range []int{500, 502, 503, 504} {
				failure := usual()
				failure.Status = status
				t.plays(failure, usual())
				key := withKey(t.numbered(i))
				t.isStatus("the failure", t.first(key), status)
				second := t.again(key)
				t.isRun("the answer after a "+strconv.Itoa(status), second, 2)
				t.repeats("the third answer", t.again(key), second)
				t.ran(2)
			}
		},
	},
	{
		ID: "failed-kept", Title: "A failure of the server's is an answer like any other", Level: Practice,
		Sources: []Source{stripe}, needs: needsKeep5xx,
		Sent:     "requests with keys of their own, to which the origin answers 500 and 503, each twice.",
		Expected: "each second answer repeats the first.",
		Ran:      "once for each key",
		check: func(t *trial) {
			for i, status := range []int{500, 503} {
				failure := usual()
				failure.Status = status
				t.plays(failure, usual())
				key := withKey(t.numbered(i))
				first := t.first(key)
				t.repeats("the retry's answer", t.again(key), first)
				t.ran(1)
			}
		},
	},
	{
		ID: "limited-runs-again", Title: "After a 429 the retry runs", Level: Practice,
		Sources:  []Source{stripeError, rfc(6585, "4")},
		Sent:     "a request to which the origin answers 429 and then 201, three times.",
		Expected: "429, the answer of a second run, and that again.",
		Ran:      "twice",
		check:    func(t *trial) { t.passing(http.StatusTooManyRequests) },
	},
	{
		ID: "unauthorized-runs-again", Title: "After a 401 the retry runs", Level: Practice,
		Sources:  []Source{stripeError, rfc(9110, "15.5.2")},
		Sent:     "a request to which the origin answers 401 and then 201, three times.",
		Expected: "401, the answer of a second run, and that again.",
		Ran:      "twice",
		check:    func(t *trial) { t.passing(http.StatusUnauthorized) },
	},
	{
		ID: "conflict-runs-again", Title: "After a 409 or a 423 of the application's own the retry runs", Level: Extension,
		Sources:  []Source{rfc(9110, "15.5.10"), ours},
		Sent:     "requests with keys of their own, to which the origin answers 409 and 423, and then 201; each three times.",
		Expected: "the origin's refusal, the answer of a second run, and that again.",
		Ran:      "twice for each key",
		check: func(t *trial) {
			for i, status := range []int{http.StatusConflict, http.StatusLocked} {
				t.passing(status, withKey(t.numbered(i)))
			}
		},
	},
	{
		ID: "later-runs-again", Title: "After an answer that says come back later the retry runs", Level: Extension,
		Sources:  []Source{rfc(9110, "10.2.3"), ours},
		Sent:     "requests with keys of their own, to which the origin answers 403 and 404 with Retry-After: 1, and then 201; each three times.",
		Expected: "the origin's refusal, the answer of a second run, and that again.",
		Ran:      "twice for each key",
		check: func(t *trial) {
			for i, status := range []int{http.StatusForbidden, http.StatusNotFound} {
				t.refusing(status, []Field{field("Retry-After", "1")}, withKey(t.numbered(i)))
			}
		},
	},
	{
		ID: "control-keeps", Title: "The application can have an answer kept that would not be", Level: Extension,
		Sources:  []Source{ours},
		Sent:     "requests with keys of their own, to which the origin answers 409, and 404 with Retry-After: 1, both with Idempotency-Control: max-age=60; each twice.",
		Expected: "each second answer repeats the first.",
		Ran:      "once for each key",
		check: func(t *trial) {
			for i, status := range []int{http.StatusConflict, http.StatusNotFound} {
				a := usual()
				a.Status = status
				a.Header = append(a.Header, field("Idempotency-Control", "max-age=60"))
				if status == http.StatusNotFound {
					a.Header = append(a.Header, field("Retry-After", "1"))
				}
				t.plays(a)
				key := withKey(t.numbered(i))
				first := t.first(key)
				t.repeats("the retry's answer", t.again(key), first)
				t.ran(1)
			}
		},
	},
	{
		ID: "control-no-store", Title: "The application can keep an answer from being kept", Level: Extension,
		Sources:  []Source{ours},
		Sent:     "a request to which the origin answers with Idempotency-Control: no-store and then without, three times.",
		Expected: "two answers of two runs, and the second again.",
		Ran:      "twice",
		check: func(t *trial) {
			a := usual()
			a.Header = append(a.Header, field("Idempotency-Control", "no-store"))
			t.plays(a, usual())
			t.first()
			second := t.again()
			t.isRun("the second answer", second, 2)
			t.repeats("the third answer", t.again(), second)
			t.ran(2)
		},
	},
	{
		ID: "control-max-age", Title: "The application can say how long an answer is kept", Level: Extension,
		Sources:  []Source{ours},
		Sent:     "a request to which the origin answers with Idempotency-Control: max-age=2, at once again, and then until it runs once more, for a few seconds at most.",
		Expected: "the first answer, that again, and the answer of a second run.",
		Ran:      "twice",
		check: func(t *trial) {
			a := usual()
			a.Header = append(a.Header, field("Idempotency-Control", "max-age=2"))
			t.plays(a)
			sent := time.Now()
			first := t.first()
			if again := t.send(); time.Since(sent) < 1500*time.Millisecond {
				t.repeats("the answer at once", again, first)
			}
			until := time.Now().Add(2*time.Second + t.patience())
			again := t.send()
			for again.run() == 1 && time.Now().Before(until) {
				t.pause(100 * time.Millisecond)
				again = t.send()
			}
			t.isRun("the answer after more than two seconds", again, 2)
		},
	},
	{
		ID: "control-hidden", Title: "What the application says of its answers is not passed on", Level: Extension,
		Sources:  []Source{ours},
		Sent:     "a POST, the same again, and a GET, to which the origin answers with Idempotency-Control.",
		Expected: "no answer has that field.",
		Ran:      "twice",
		check: func(t *trial) {
			a := usual()
			a.Header = append(a.Header, field("Idempotency-Control", "max-age=60"))
			t.plays(a)
			first := t.first()
			for what, a := range map[string]*reply{"the first answer": first, "the retry's answer": t.again(), "the answer to GET": t.send(withMethod(http.MethodGet), withBody(""))} {
				if said := a.values("Idempotency-Control"); a.err != nil || len(said) > 0 {
					t.wrongf("%s is %v, with Idempotency-Control: %s", what, a, strings.Join(said, ", "))
				}
			}
			t.ran(2)
		},
	},
}

// passing checks that an answer that time or other credentials change is not kept.
func (t *trial) passing(status int, changes ...change) { t.refusing(status, nil, changes...) }

// refusing checks that a refusal with these fields is not kept.
func (t *trial) refusing(status int, fields []Field, changes ...change) {
	refusal := usual()
	refusal.Status = status
	refusal.Header = append(refusal.Header, fields...)
	t.plays(refusal, usual())
	t.isStatus("the first answer", t.first(changes...), status)
	second := t.again(changes...)
	t.isRun("the second answer", second, 2)
	t.repeats("the third answer", t.again(changes...), second)
	t.ran(2)
}

package idempotency_test

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestAThousandSmallRequests: without any option a thousand requests run at once.
func TestAThousandSmallRequests(t *testing.T) {
	gate := newGate()
	g := newRig(t, nil, gate.ServeHTTP)
	var answers []<-chan *httptest.ResponseRecorder
	for i := range 1000 {
		answers = append(answers, g.sendLater(withKey(strconv.Itoa(i)), withBody(strings.Repeat("x", 10_000))))
		<-gate.entered
	}
	close(gate.open)
	for _, answer := range answers {
		isFresh(t, <-answer, 201)
	}
}

// TestTemporaryFilesAreBounded: bodies that come slowly do not fill the folder of temporary files, and
// nothing is left of them.
func TestTemporaryFilesAreBounded(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	g := newRig(t, idempotency.Options{MaxStored: 10, MaxBody: 1000, MaxBodyMemory: 250}.InMemory(10), nil)
	const uploads, fit = 13, 3 // of 300 bytes in 1000
	var bodies []*io.PipeWriter
	var answers []<-chan *httptest.ResponseRecorder
	for i := range uploads {
		body, to := io.Pipe()
		bodies, answers = append(bodies, to), append(answers, g.sendLater(withKey(strconv.Itoa(i)), withChunks(body)))
		_, err := io.WriteString(to, strings.Repeat("x", 300))
		testkit.Must(t, err)
	}
	testkit.Eventually(t, "the refusals", func() bool { return len(g.seen()) == uploads-fit })
	for _, to := range bodies {
		testkit.Must(t, to.Close())
	}
	statuses := map[int]int{}
	for _, answer := range answers {
		statuses[(<-answer).Code]++
	}
	if statuses[503] != uploads-fit || statuses[201] != fit {
		t.Errorf("the answers are %v", statuses)
	}
	isFresh(t, g.send(withKey("whole"), withBody(strings.Repeat("x", 1000))), 201)
}

// TestRecordsCountBeforeTheyAreRead: the store is not asked for more long answers at once than there is
// memory for, and all retries get theirs.
func TestRecordsCountBeforeTheyAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make([]byte, 2000)
		_, _ = rand.Read(answer)
		g := newRig(t, idempotency.Options{MaxStored: 4000, MaxBodyMemory: 16_000}.InMemory(10), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(answer)
		})
		first := g.send(withBody(""))
		var now, most atomic.Int64
		g.store.fail(func(_ context.Context, op string) error {
			if op == "claim" {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(100 * time.Millisecond)
				now.Add(-1)
			}
			return nil
		})
		var retries []<-chan *httptest.ResponseRecorder
		for range 10 {
			retries = append(retries, g.sendLater(withBody("")))
		}
		for _, retry := range retries {
			isReplay(t, <-retry, first)
		}
		if n := most.Load(); n != 2 { // of 2.1 kB in 4 kB, and one more
			t.Errorf("%d records were read at once; want 2", n)
		}
		g.ran(1)
	})
}

// TestEveryPartIsCounted: two requests whose parts are equal only when they are written one after the
// other are two requests.
func TestEveryPartIsCounted(t *testing.T) {
	for name, test := range map[string]struct {
		fingerprint idempotency.FingerprintOptions
		contentType string
		one, two    string
	}{
		"values of a form's field": {idempotency.FingerprintOptions{Fields: []string{"a"}}, "application/x-www-form-urlencoded", "a=1&a=2", "a=12"},
		"an empty value":           {idempotency.FingerprintOptions{Fields: []string{"a"}}, "application/x-www-form-urlencoded", "a=1&a=", "a=1"},
		"two fields":               {idempotency.FingerprintOptions{Fields: []string{"a", "b"}}, "application/x-www-form-urlencoded", "a=1&b=2", "a=2&b=1"},
		"a field of two":           {idempotency.FingerprintOptions{Fields: []string{"a", "b"}}, "application/x-www-form-urlencoded", "a=1", "b=1"},
		"members of an object":     {idempotency.FingerprintOptions{Fields: []string{"a", "b"}}, "application/json", `{"a":1}`, `{"b":1}`},
		"elements of a list":       {idempotency.FingerprintOptions{Fields: []string{"a"}}, "application/json", `{"a":["1","2"]}`, `{"a":["12"]}`},
		"strings in a document":    {idempotency.FingerprintOptions{CanonicalJSON: true}, "application/json", `["1","2"]`, `["12"]`},
		"names in a document":      {idempotency.FingerprintOptions{CanonicalJSON: true}, "application/json", `{"a":"bc"}`, `{"ab":"c"}`},
		"parts of a body":          {idempotency.FingerprintOptions{Multipart: true}, "multipart/form-data; boundary=x", "--x\r\n\r\n1\r\n--x\r\n\r\n2\r\n--x--\r\n", "--x\r\n\r\n12\r\n--x--\r\n"},
		"a part's header":          {idempotency.FingerprintOptions{Multipart: true}, "multipart/form-data; boundary=x", "--x\r\nA: bc\r\n\r\n1\r\n--x--\r\n", "--x\r\nAb: c\r\n\r\n1\r\n--x--\r\n"},
	} {
		g := newRig(t, &idempotency.Options{Fingerprint: test.fingerprint}, nil)
		isFresh(t, g.send(withBody(test.one), with("Content-Type", test.contentType)), http.StatusCreated)
		if w := g.send(withBody(test.two), with("Content-Type", test.contentType)); w.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %q after %q is answered %d", name, test.two, test.one, w.Code)
		}
		g.ran(1)
	}
}

// TestEveryPartOfAScopeIsNamed: a value of one part of the scope is not that of another part, and several
// values are not one.
func TestEveryPartOfAScopeIsNamed(t *testing.T) {
	header, cookie := idempotency.ScopeHeader("X-User"), idempotency.ScopeCookie("sid")
	other, function := idempotency.ScopeHeader("X-Org"), idempotency.ScopeFunc("f", func(r *http.Request) string { return r.Header.Get("X-Func") })
	all := []idempotency.ScopePart{idempotency.ScopeAuthorization, cookie, function, header, other}
	g := newRig(t, &idempotency.Options{Scope: all}, nil)
	seen := map[string]int{}
	for i, of := range [][]change{
		{with("Authorization", "v")}, {with("Cookie", "sid=v")}, {with("X-Func", "v")}, {with("X-User", "v")}, {with("X-Org", "v")},
		{with("Authorization", "v"), with("Cookie", "sid=v")}, {with("Cookie", "sid=v"), with("X-Func", "v")},
		{with("Authorization", "v", "v")}, {with("Authorization", "vv")}, {with("X-User", "v", "v")}, {with("X-User", "vv")},
		{with("X-User", "v"), with("X-Org", "w")}, {with("X-User", "w"), with("X-Org", "v")}, {with("Cookie", "sid=v; sid=v")}, {with("Cookie", "sid=vv")},
	} {
		w := g.send(of...)
		isFresh(t, w, http.StatusCreated)
		if before, ok := seen[w.Body.String()]; ok {
			t.Errorf("client %d gets the answer of client %d", i, before)
		}
		seen[w.Body.String()] = i
		isReplay(t, g.send(of...), w)
	}
	g.ran(int64(len(seen)))
	credentials := newRig(t, nil, nil)
	for i, name := range []string{"Authorization", "X-Api-Key", "Api-Key", "X-Auth-Token", "Token"} {
		isFresh(t, credentials.send(with(name, "v")), http.StatusCreated)
		credentials.ran(int64(i + 1))
	}
}

// TestAnAnswerThatWasSentInPart: what was sent came from somewhere, so the run is not undone, whatever
// the handler says of its origin.
func TestAnAnswerThatWasSentInPart(t *testing.T) {
	for _, failure := range []idempotency.Failure{idempotency.Unreached, idempotency.HungUp, idempotency.TimedOut, idempotency.BrokeOff} {
		g := newRig(t, &idempotency.Options{OnCrash: idempotency.AtMostOnce}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("part"))
			w.(http.Flusher).Flush()
			idempotency.Fail(r.Context(), failure)
		})
		if w := g.sendBroken(); w.Body.String() != "part" {
			t.Errorf("the client got %q", w.Body)
		}
		isProblem(t, g.send(), "outcome-unknown", http.StatusConflict)
		g.ran(1)
	}
}

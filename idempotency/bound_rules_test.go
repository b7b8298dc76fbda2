package idempotency_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// withChunks is withBody for a body without a declared length.
func withChunks(body io.Reader) change {
	return func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(body), -1 }
}

// isOverloaded checks that the bound refused the request.
func (g *rig) isOverloaded(bound string, w *httptest.ResponseRecorder) {
	g.t.Helper()
	isProblem(g.t, w, "overloaded", 503)
	if retry := w.Header().Get("Retry-After"); retry != "1" {
		g.t.Errorf("Retry-After is %q", retry)
	}
	if e := g.last(); e.Kind != idempotency.EventOverloaded || e.Status != 503 || e.Attempt != 0 || e.Fence != 0 ||
		e.Err == nil || !strings.Contains(e.Err.Error(), bound) {
		g.t.Errorf("the event is %+v; want %s", e, bound)
	}
}

// A slowWriter waits before it writes the body.
type slowWriter struct {
	*httptest.ResponseRecorder
	entered, open chan struct{}
	once          sync.Once
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.once.Do(func() {
		w.entered <- struct{}{}
		<-w.open
	})
	return w.ResponseRecorder.Write(p)
}

var boundRules = []rule{
	{"Requests with a key can be bounded", func(t *testing.T) {
		began, end := make(chan struct{}), make(chan struct{})
		g := newRig(t, &idempotency.Options{MaxConcurrent: 2, Wait: time.Minute}, func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Idempotency-Key") != "" {
				began <- struct{}{}
				<-end
			}
		})
		var clients sync.WaitGroup
		for _, key := range []string{"a", "b"} {
			clients.Go(func() {
				if w := g.send(withKey(key)); w.Code != 200 {
					t.Errorf("the request %s: %d", key, w.Code)
				}
			})
			<-began
		}
		for _, key := range []string{"c", "a"} { // a would wait
			g.isOverloaded("MaxConcurrent", g.send(withKey(key)))
		}
		if w := g.send(with("Idempotency-Key")); w.Code != 200 {
			t.Errorf("a request without a key: %d", w.Code)
		}
		if runs := g.runs.Load(); runs != 3 {
			t.Errorf("the handler ran %d times; want 3", runs)
		}
		close(end)
		clients.Wait()
		go func() { <-began }()
		if w := g.send(withKey("c")); w.Code != 200 {
			t.Errorf("the retry: %d", w.Code)
		}
	}},
	{"The memory of bodies is bounded", func(t *testing.T) {
		gate := newGate()
		g := newRig(t, idempotency.Options{MaxStored: 10, MaxBodyMemory: 20}.InMemory(10), func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("X-Then") {
			case "panics":
				panic(http.ErrAbortHandler)
			case "waits":
				gate.ServeHTTP(w, r)
			}
		})
		ten, waits := withBody("0123456789"), with("X-Then", "waits")
		done := g.send(withKey("done"), withBody(""))
		g.sendBroken(withKey("b"), ten, with("X-Then", "panics"))
		first := g.sendLater(withKey("a"), ten, waits)
		<-gate.entered
		second := g.sendLater(withKey("c"), withBody("012345678"), waits)
		<-gate.entered
		third := g.sendLater(withKey("d"), withBody("0"), waits)
		<-gate.entered // exactly 20 bytes
		g.isOverloaded("MaxBodyMemory", g.send(withKey("b"), ten))
		g.isOverloaded("MaxBodyMemory", g.send(withKey("done"), withBody("1")))
		g.isOverloaded("MaxBodyMemory", g.send(withKey("done"), withChunks(strings.NewReader("1"))))
		isReplay(t, g.send(withKey("done"), withBody("")), done)
		isProblem(t, g.send(withKey("a"), withBody("")), "key-reused", 422)
		if w := g.send(ten, with("Idempotency-Key")); w.Code != 200 {
			t.Errorf("a request without a key: %d", w.Code)
		}
		g.ran(6)
		close(gate.open)
		<-first
		<-second
		<-third
		isFresh(t, g.send(withKey("b"), ten), 200)
		if e := g.last(); e.Attempt != 2 {
			t.Errorf("attempt %d after a refusal; want 2, because only one attempt ran", e.Attempt)
		}
	}},
	{"The memory of bodies is bounded", inBubble(func(t *testing.T) {
		// An answer counts as it comes. It waits for room and is not refused, because it has happened.
		const runs, parts, part = 20, 10, 100
		g := newRig(t, idempotency.Options{MaxStored: parts * part, MaxBodyMemory: 2 * parts * part}.InMemory(10), func(w http.ResponseWriter, r *http.Request) {
			for range parts {
				time.Sleep(time.Second)
				_, _ = io.WriteString(w, strings.Repeat("x", part))
			}
		})
		var answers []<-chan *httptest.ResponseRecorder
		for i := range runs {
			answers = append(answers, g.sendLater(withKey(strconv.Itoa(i)), withBody("")))
		}
		for i, answer := range answers {
			w := <-answer
			isFresh(t, w, 200)
			isReplay(t, g.send(withKey(strconv.Itoa(i)), withBody("")), w)
		}
		g.ran(runs)
	})},
	{"The memory of bodies is bounded", func(t *testing.T) {
		// A body without a length takes more as it grows, and one in a file takes nothing.
		gate := newGate()
		g := newRig(t, idempotency.Options{MaxStored: 10, MaxBodyMemory: 2010}.InMemory(2000), func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Then") == "waits" {
				gate.ServeHTTP(w, r)
			}
		})
		body := func(n int) change { return withChunks(strings.NewReader(strings.Repeat("x", n))) }
		file := g.sendLater(withKey("file"), body(3000), with("X-Then", "waits"))
		<-gate.entered
		memory := g.sendLater(withKey("memory"), withBody(strings.Repeat("x", 1400)), with("X-Then", "waits"))
		<-gate.entered
		isFresh(t, g.send(withKey("a"), body(511)), 200)
		g.isOverloaded("MaxBodyMemory", g.send(withKey("b"), body(611)))
		close(gate.open)
		<-file
		<-memory
		isFresh(t, g.send(withKey("b"), body(2000)), 200)
		g.ran(4)
	}},
	{"The memory of bodies is bounded", func(t *testing.T) {
		// However a request ends, it gives the memory back.
		g := newRig(t, idempotency.Options{MaxBody: 20, MaxStored: 10, MaxBodyMemory: 20}.InMemory(10), func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("X-Then") {
			case "panics":
				panic(http.ErrAbortHandler)
			case "exits":
				runtime.Goexit()
			case "is long":
				_, _ = io.WriteString(w, strings.Repeat("x", 100))
			case "hangs up":
				idempotency.Fail(r.Context(), idempotency.HungUp)
			}
		})
		ten := withBody("0123456789")
		gone, goAway := context.WithCancel(t.Context())
		goAway()
		broken := withChunks(io.MultiReader(strings.NewReader("01234"), iotest.ErrReader(errors.New("reset"))))
		isFresh(t, g.send(withKey("used")), 200)
		for name, changes := range map[string][]change{
			"panics": nil, "exits": nil, "is long": nil, "hangs up": nil,
			"has a long body":   {withBody(strings.Repeat("x", 21))},
			"grows too long":    {withChunks(strings.NewReader(strings.Repeat("x", 21)))},
			"breaks off":        {broken},
			"loses its client":  {broken, func(r *http.Request) { *r = *r.WithContext(gone) }},
			"reuses a key":      {withKey("used")},
			"is already served": {withKey("used"), withBody(`{"amount":1200}`)},
		} {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				g.send(slices.Concat([]change{withKey(`"` + name + `"`), ten, with("X-Then", name)}, changes)...)
			}()
			<-ended
			if w := g.send(withKey(`"after `+name+`"`), ten); w.Code != 200 {
				t.Errorf("after a request that %s: %d %s", name, w.Code, w.Body)
			}
		}
	}},
	{"The memory of bodies is bounded", func(t *testing.T) {
		// Also a connection that the handler takes over gives the memory back.
		options := idempotency.Options{MaxStored: 10, MaxBodyMemory: 20, Key: idempotency.KeyHeader("X-Event")}.InMemory(10)
		g := newRig(t, options, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Event") != "" {
				return
			}
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.Close()
		})
		server := httptest.NewServer(g.h)
		defer server.Close()
		ten := withBody("0123456789")
		if _, _, err := wire(t, server, ten); err == nil {
			t.Error("the connection was not closed")
		}
		testkit.Eventually(t, "the request has ended", func() bool { return len(g.seen()) == 1 })
		testkit.Eventually(t, "another request runs", func() bool { return g.send(ten, with("X-Event", "1")).Code == 200 })
	}},
	{"The memory of bodies is bounded", func(t *testing.T) {
		// An answer is in memory until it is stored.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, idempotency.Options{MaxStored: 10, MaxBodyMemory: 20}.InMemory(10), nil)
			ten := withBody("0123456789")
			down := failing("settle", errDown)
			g.store.fail(down)
			isFresh(t, g.send(withKey("a"), ten), 201)
			g.isOverloaded("MaxBodyMemory", g.send(withKey("b"), ten))
			g.store.heal()
			time.Sleep(time.Minute)
			isFresh(t, g.send(withKey("b"), ten), 201)
			g.ran(2)

			// Or until the store has refused it for HandlerLimit.
			g.store.fail(down)
			isFresh(t, g.send(withKey("c"), ten), 201)
			time.Sleep(idempotency.DefaultHandlerLimit - time.Second)
			g.isOverloaded("MaxBodyMemory", g.send(withKey("d"), ten))
			time.Sleep(time.Minute)
			isFresh(t, g.send(withKey("e"), ten), 201)
			g.store.heal()
			time.Sleep(time.Minute)
			isFresh(t, g.send(withKey("c"), ten), 201) // its answer was given up
			g.ran(5)
		})
	}},
	{"The memory of bodies is bounded", func(t *testing.T) {
		// A replay takes what a compressed answer becomes, until it is sent.
		g := newRig(t, &idempotency.Options{MaxBodyMemory: 2 << 20}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, 1<<20))
		})
		first := g.send()
		entered, open, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			g.h.ServeHTTP(&slowWriter{ResponseRecorder: httptest.NewRecorder(), entered: entered, open: open}, request())
		}()
		<-entered
		g.isOverloaded("MaxBodyMemory", g.send())
		close(open)
		<-ended
		for range 3 {
			isReplay(t, g.send(), first)
		}
		g.ran(1)
	}},
	{"The memory of bodies is bounded", func(t *testing.T) {
		// A refused request gives it back before the rest of its body comes.
		gate := newGate()
		g := newRig(t, idempotency.Options{MaxStored: 10, MaxBodyMemory: 1010}.InMemory(1000), func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Then") == "waits" {
				gate.ServeHTTP(w, r)
			}
		})
		running := g.sendLater(withKey("running"), withBody(strings.Repeat("x", 600)), with("X-Then", "waits"))
		<-gate.entered
		rest, body := io.Pipe()
		refused := g.sendLater(withKey("refused"), withChunks(io.MultiReader(strings.NewReader(strings.Repeat("x", 512)), rest)))
		testkit.Eventually(t, "the refusal", func() bool { return len(g.seen()) == 1 })
		isFresh(t, g.send(withKey("a"), withBody(strings.Repeat("x", 400))), 200)
		_ = body.Close()
		isProblem(t, <-refused, "overloaded", 503)
		close(gate.open)
		<-running
		g.ran(2)
	}},
}

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

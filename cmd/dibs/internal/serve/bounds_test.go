package serve

import (
	"bufio"
	"context"
	"fmt"
	"iter"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// memoryIs waits until calls have taken that many bytes.
func (r *rig) memoryIs(n int64) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("%d bytes of memory are taken", n), func() bool {
		return r.server.load.bodies.Used()+r.server.load.records.Used()+r.server.load.leases.Used() == n
	})
}

// TestHostileBodies: what no client means is refused, with what is wrong. Nothing is left of it.
func TestHostileBodies(t *testing.T) {
	r := start(t, inMemory(t), func(c *Config) { c.MaxBody, c.MaxBodyMemory = 4<<20, 1<<24 })
	look := `{"key":"k","mode":"look"}`
	for _, test := range []struct {
		path, body string
		status     int
		detail     string
	}{
		{"claim", "", 400, "ends early"},
		{"claim", "nonsense", 400, "invalid character"},
		{"claim", `{"claims":[` + strings.Repeat(look+",", 10_000) + look + `]}`, 413, "more than 1024"},
		{"renew", `{"renewals":[` + strings.Repeat(`{"key":"k","token":"`+strings.Repeat("1", 32)+`"},`, 10_000) + `{}]}`, 413, "more than 1024"},
		{"settle", `{"settlements":[` + strings.Repeat(`{"key":"k","token":"`+strings.Repeat("1", 32)+`"},`, 10_000) + `{}]}`, 413, "more than 1024"},
		{"claim", `{"claims":` + strings.Repeat("[", 1<<20), 400, "claims[0]"},
		{"claim", `{"claims":[{"key":` + strings.Repeat("[", 1<<20), 400, "claims[0].key"},
		{"claim", `{"claims":[{"owner":` + strings.Repeat(`{"host":`, 1<<17), 400, "claims[0].owner.host"},
		{"claim", `{"claims":"k"}`, 400, "claims: it must be an array"},
		{"claim", `{"claims":[{"key":"k","mode":"look","ttl_ms":"1"}]}`, 400, "claims[0].ttl_ms"},
		{"claim", `{"claims":[{"key":"k","mode":"look","ttl_ms":1e400}]}`, 400, "claims[0].ttl_ms"},
		{"claim", `{"claims":[{"key":"k","mode":"look","ttl":1}]}`, 400, `"ttl" is unknown`},
		{"claim", `{"claims":[],"` + strings.Repeat("x", 1<<20) + `":1}`, 400, "is unknown"},
		{"claim", `{"claims":[{"key":"` + strings.Repeat("k", 1<<20) + `","mode":"look"}]}`, 400, "it has 1048576 bytes"},
		{"claim", `{"claims":[` + strings.Repeat(" ", 4<<20) + `]}`, 413, "longer than 4MiB, the server's --max-body"},
		{"claim", `{"claims":[` + strings.Repeat(" ", 3<<20) + `]}`, 429, "without one: here 16MiB"},
		{"keys/forget", `{"key":{}}`, 400, "key: it must be a string"},
		{"keys/release", `[]`, 400, "it must be an object"},
	} {
		got := r.do("POST", "/v1/"+test.path, "", test.body)
		if got.status != test.status || !strings.Contains(got.Detail, test.detail) || len(got.text) > 1000 {
			t.Errorf("%s %.50s is %d %.300s; want %d with %s", test.path, test.body, got.status, got.text, test.status, test.detail)
		}
	}
	r.memoryIs(0)
	if got := r.claim(1, "}]").state(); got != "granted" {
		t.Errorf("the next claim is %s", got)
	}
}

// TestElementsTakeMemory: elements count as what they become, and not as the few bytes in which
// they arrive. While they wait they still count.
func TestElementsTakeMemory(t *testing.T) {
	const all = 1 << 20
	r := start(t, inMemory(t), func(c *Config) { c.MaxBodyMemory = all })
	looks := func(n int, rest string) *reply {
		return r.do("POST", "/v1/claim", "", `{"claims":[`+strings.Repeat(`{"key":"k","mode":"look"},`, n-1)+`{"key":"k","mode":"look"}]`+rest+`}`)
	}
	if got := looks(1024, ""); got.status != http.StatusTooManyRequests || !strings.Contains(got.Detail, "elements") {
		t.Errorf("more than fits is %d %s", got.status, got.Detail)
	}
	if got := looks(200, ""); got.state() != "free" {
		t.Errorf("what fits is %s", got.state())
	}
	r.claim(1, "}]")
	ended := make(chan *reply, 1)
	go func() { ended <- looks(200, `,"wait_ms":60000`) }()
	r.waits(200)
	if got := looks(200, ""); got.status != http.StatusTooManyRequests {
		t.Errorf("beside those that wait it is %d", got.status)
	}
	r.settle(1)
	if got := testkit.Await(t, "the answer to those that wait", ended); got.state() != "free" {
		t.Errorf("those that wait are answered %s", got.state())
	}
	r.memoryIs(0)
}

// keep stores records of n bytes under the keys k0, k1 and so on.
func (r *rig) keep(keys, n int) {
	r.t.Helper()
	for i := range keys {
		keepRecord(r.t, r.server.store, store.Key{Name: fmt.Sprintf("k%02d", i)}, n)
	}
}

// TestRecordsTakeMemory: the records of an answer count. Claims for which there is no memory are
// busy, and can be made again.
func TestRecordsTakeMemory(t *testing.T) {
	const all = 1 << 20
	r := start(t, inMemory(t), func(c *Config) { c.MaxBodyMemory = all })
	r.keep(recordPart+1, 50_000)
	var claims []string
	for i := range recordPart + 1 {
		claims = append(claims, fmt.Sprintf(`{"key":"k%02d","mode":"look","max_age_ms":3600000}`, i))
	}
	got := r.do("POST", "/v1/claim", "", `{"claims":[`+strings.Join(claims, ",")+`]}`)
	const fit = 1 // of 250,000 bytes in three eighths of a MiB
	if len(got.Answers) != recordPart+1 || got.Answers[0].State != "done" || got.Answers[fit-1].State != "done" {
		t.Fatalf("it is %.200s", got.text)
	}
	for _, a := range got.Answers[fit:] {
		if a.Error == nil || a.Error.Type != "busy" || !strings.Contains(a.Error.Detail, "GOMEMLIMIT") {
			t.Errorf("one that does not fit is %+v", a)
		}
	}
	r.memoryIs(0)
	if got := r.do("POST", "/v1/claim", "", `{"claims":[`+claims[recordPart]+`]}`); got.state() != "done" {
		t.Errorf("again it is %s", got.state())
	}
	if got := r.do("GET", "/v1/keys?data=true", "", ""); got.status != http.StatusOK || strings.Count(got.text, `"data":"AAAA`) != recordPart+1 {
		t.Errorf("a list of all is %d", got.status)
	}
	r.memoryIs(0)
}

// TestBoundsOfACredential: what is refused counts for nobody, a call that is over counts no more, and
// a call that waits counts as a claim that waits.
func TestBoundsOfACredential(t *testing.T) {
	file := tokensFile(t, credentialLine("a", "token-a", "shop", "use"), credentialLine("b", "token-b", "shop", "use"))
	r := start(t, inMemory(t), func(c *Config) {
		c.Tokens, c.MaxCalls, c.MaxWaiters = file, 2, 2
	})
	claim := func(by string, n int, more string) *reply {
		t.Helper()
		return r.do("POST", "/v1/claim", by, fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x"%s}`, n, more))
	}
	waiting := make(chan *reply, 2)
	for range 3 {
		if got := claim("token-a", 1, "}]"); got.state() != "granted" {
			t.Fatalf("a call after others is answered %d %s", got.status, got.text)
		}
	}
	const waits = `,"mode":"queue"}],"wait_ms":60000`
	go func() { waiting <- claim("token-a", 2, waits) }()
	r.waits(1)
	for range 3 {
		if got := claim("token-a", 3, waits); got.status != http.StatusTooManyRequests || !strings.Contains(got.Detail, " 1, half of the server's --max-waiters") {
			t.Errorf("one more call that waits is answered %d %s", got.status, got.text)
		}
	}
	go func() { waiting <- claim("token-b", 4, waits) }()
	r.waits(2)
	if got := claim("token-a", 5, waits); got.status != http.StatusTooManyRequests || !strings.Contains(got.Detail, " 2, its --max-waiters.") {
		t.Errorf("one more call than all is answered %d %s", got.status, got.text)
	}
	for n := range 3 {
		if got := claim("token-b", 6+n, "}]").state(); got != "held" {
			t.Errorf("a call that does not wait is answered %s", got)
		}
	}
	for n, by := range []string{"token-a", "token-b"} {
		if got := r.do("POST", "/v1/settle", by, fmt.Sprintf(`{"settlements":[{"key":"k","token":"%032x"}]}`, 2+2*n)); got.status != 200 {
			t.Errorf("the settlement is answered %d %s", got.status, got.text)
		}
	}
	for range 2 {
		testkit.Await(t, "the end of a call that waits", waiting)
	}
	testkit.Eventually(t, "nothing is under way", func() bool {
		nothing := func(l *load) bool { return l.calls.Load() == 0 && l.waiters.Load() == 0 }
		n, all := 0, nothing(r.server.load)
		r.server.loads.Range(func(_, l any) bool {
			n++
			all = all && nothing(l.(*load))
			return true
		})
		return all && n == 2
	})
}

// listing is a store in memory that counts the records with data that its lists have, and that
// never comes to the second key if it hangs.
type listing struct {
	*memstore.Store
	hangs bool
	data  map[int]int // how many lists had that many records with data
}

func (l *listing) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		n := 0
		for e, err := range l.Store.List(ctx, q) {
			if e.Record != nil && e.Record.Data != nil {
				n++
			}
			if !yield(e, err) {
				return
			}
			if l.hangs {
				<-ctx.Done()
				yield(store.Entry{}, ctx.Err())
				return
			}
		}
		l.data[n]++
	}
}

// TestAListIsBounded: a list asks the store for the data of one record at a time, and ends if the
// store takes too long to the next key.
func TestAListIsBounded(t *testing.T) {
	l := &listing{Store: inMemory(t), data: map[int]int{}}
	r := start(t, l, nil)
	r.keep(3, 10)
	if got := r.do("GET", "/v1/keys?data=true", "", ""); strings.Count(got.text, `"data":"AAAA`) != 3 || l.data[1] != 3 || l.data[0] != 1 || len(l.data) != 2 {
		t.Errorf("the lists have %v records with data: %s", l.data, got.text)
	}
	l.hangs, r.server.limits.next = true, 20*time.Millisecond
	conn := r.open("GET /v1/keys HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
		if _, err = bufio.NewReader(resp.Body).ReadString(0); err == nil || err.Error() != "unexpected EOF" {
			t.Errorf("the list ends with %v", err)
		}
	}
	testkit.Eventually(t, "the log says why the list ended", func() bool { return strings.Contains(r.log.String(), errListTimeout.Error()) })
}

// open opens a connection and sends a text.
func (r *rig) open(text string) net.Conn {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	testkit.Must(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	_, err = conn.Write([]byte(text))
	testkit.Must(r.t, err)
	return conn
}

const head = "POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

// TestSlowBodies: a client that stops in the middle of its body, and one that sends a byte now and
// then, are refused when their time is over.
func TestSlowBodies(t *testing.T) {
	for name, l := range map[string]limits{
		"it stops":             {silence: 20 * time.Millisecond, rate: 0},
		"a byte now and then":  {silence: 50 * time.Millisecond, rate: 1 << 20},
		"of an unknown length": {silence: 50 * time.Millisecond, rate: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, inMemory(t), nil)
			r.server.limits = l
			length, piece := "Content-Length: 100000\r\n\r\n", " "
			if name == "of an unknown length" {
				length, piece = "Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"
			}
			conn := r.open(head + length + piece)
			over := make(chan struct{})
			sending := make(chan struct{})
			go func() {
				defer close(sending)
				for name != "it stops" {
					select {
					case <-over:
						return
					case <-time.After(time.Millisecond):
						_, _ = conn.Write([]byte(piece)) // it fails when the server has closed the connection
					}
				}
			}()
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			close(over)
			<-sending
			testkit.Must(t, err)
			conn.Close() // the body's end comes when the client has stopped sending
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusRequestTimeout {
				t.Errorf("it is %d", resp.StatusCode)
			}
			r.memoryIs(0)
		})
	}
}

// TestAClientThatReadsNothing: the server gives it up, and what its answers took is given back.
func TestAClientThatReadsNothing(t *testing.T) {
	r := start(t, inMemory(t), nil)
	r.server.limits.silence = 20 * time.Millisecond
	r.keep(2, 12<<20)
	claims := `{"claims":[{"key":"k00","mode":"look","max_age_ms":3600000},{"key":"k01","mode":"look","max_age_ms":3600000}]}`
	r.open(head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(claims), claims))
	r.open("GET /v1/keys?data=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
	testkit.Eventually(t, "both calls have begun and are over", func() bool { return r.over.Load() == 2 })
	r.memoryIs(0)
}

// reading is a store in memory that counts the calls that read records at once, while they may not end.
type reading struct {
	*memstore.Store
	now atomic.Int64
	may chan struct{}
}

func (s *reading) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	s.now.Add(1)
	defer s.now.Add(-1)
	<-s.may
	return s.Store.Claim(ctx, claims, answers)
}

// TestLargeRecordsAreReadOneByOne: a record counts before it is read. So claims of a large one do not
// read more of it at once than there is memory for, and one more. All of them get it.
func TestLargeRecordsAreReadOneByOne(t *testing.T) {
	for _, test := range []struct {
		mode  string
		bytes int
		reads int64 // of five times the bytes, in 6 MiB, and one more
	}{
		{"try", 2 << 20, 1}, {"look", 2 << 20, 1}, {"queue", 2 << 20, 1}, {"try", 256 << 10, 5}, {"queue", 256 << 10, 5},
	} {
		var s *reading
		inBubble(t, func(t *testing.T) dibs.Store {
			s = &reading{inMemory(t), atomic.Int64{}, make(chan struct{})}
			keepRecord(t, s.Store, store.Key{Name: "k"}, test.bytes)
			return s
		}, func(b *bubble) {
			const callers = 9
			done, more := make(chan *reply, callers), ""
			if test.mode == "queue" {
				more = `,"place_ttl_ms":60000}],"wait_ms":60000`
			} else {
				more = "}]"
			}
			for n := range callers {
				go func() { done <- b.claim(n+1, fmt.Sprintf(`,"mode":%q,"max_age_ms":3600000`, test.mode)+more) }()
			}
			synctest.Wait()
			if n := s.now.Load(); n != test.reads {
				t.Errorf("%d claims read records at once; want %+v", n, test)
			}
			close(s.may)
			for range callers {
				if got := <-done; got.state() != "done" {
					t.Errorf("%+v: a claim is answered %.200s", test, got.text)
				}
			}
		})
	}
}

// TestAWaitExceedsNoBound: a call that waits for a key with an old record, which is larger than the
// bound, keeps no other call out that needs to exceed it.
func TestAWaitExceedsNoBound(t *testing.T) {
	inBubble(t, func(t *testing.T) dibs.Store {
		s := inMemory(t)
		for _, name := range []string{"k", "other"} {
			keepRecord(t, s, store.Key{Name: name}, 2<<20) // which takes 10 MiB of 6
		}
		return s
	}, func(b *bubble) {
		time.Sleep(time.Minute)
		b.claim(1, `,"ttl_ms":3600000}]`)
		waited := make(chan *reply, 1)
		go func() {
			waited <- b.claim(2, `,"mode":"queue","max_age_ms":1000,"place_ttl_ms":60000}],"wait_ms":60000`)
		}()
		synctest.Wait()
		began := time.Now()
		if got := b.call("claim", `{"claims":[{"key":"other","mode":"look","max_age_ms":3600000}]}`); got.state() != "done" || time.Since(began) > 0 {
			t.Errorf("the other claim is answered %.200s after %v", got.text, time.Since(began))
		}
		b.settle(1)
		if got := (<-waited).state(); got != "granted" {
			t.Errorf("the call that waited is answered %s", got)
		}
	})
}

// TestSmallRecordsCostNoLook: after many small records the server does not ask how long they are, until
// there is a large one again.
func TestSmallRecordsCostNoLook(t *testing.T) {
	l := &listing{Store: inMemory(t), data: map[int]int{}}
	r := start(t, l, nil)
	r.keep(1, 10)
	looks := func() int { return l.data[0] }
	claim := func(n int) {
		t.Helper()
		all := strings.Repeat(`{"key":"k00","mode":"look","max_age_ms":3600000},`, n)
		if got := r.do("POST", "/v1/claim", "", `{"claims":[`+all[:len(all)-1]+`]}`); got.state() != "done" {
			t.Fatalf("it is %.200s", got.text)
		}
	}
	claim(trusted)
	if n := looks(); n != trusted {
		t.Errorf("%d records were looked at first; want %d", n, trusted)
	}
	claim(16)
	if n := looks(); n != trusted {
		t.Errorf("%d more records were looked at first", n-trusted)
	}
	r.do("POST", "/v1/settle", "", fmt.Sprintf(`{"settlements":[{"key":"other","token":"%032x","outcome":"keep","data":%q,"retention_ms":1000}]}`, 1, strings.Repeat("A", 1<<20)))
	claim(1)
	if n := looks(); n != trusted+1 {
		t.Errorf("after a large record %d were looked at first; want 1", n-trusted)
	}
}

// TestAFloodLeavesRoom: whatever bodies one credential sends, others have memory for their calls, and its
// own claims leave room for its renewals. Many credentials together leave room for all renewals.
func TestAFloodLeavesRoom(t *testing.T) {
	var lines []string
	for n := range 8 {
		lines = append(lines, credentialLine(fmt.Sprint("c", n), fmt.Sprint("token-", n), "shop", "use"))
	}
	file := tokensFile(t, lines...)
	r := start(t, inMemory(t), func(c *Config) { c.Tokens, c.MaxBody, c.MaxBodyMemory = file, 40_000, 1<<20 })
	flood := func(by string, fit int64) {
		t.Helper()
		for range 21 {
			r.open(fmt.Sprintf("POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: 40000\r\n\r\n%s",
				by, strings.Repeat(" ", 39_000)))
		}
		r.memoryIs(fit * 39_000 * bodyMemory)
	}
	renew := func(by string) {
		t.Helper()
		one := fmt.Sprintf(`{"key":"k","token":"%032x","ttl_ms":1000}`, 1)
		if got := r.do("POST", "/v1/renew", by, `{"renewals":[`+strings.Repeat(one+",", 7)+one+`]}`); got.status != http.StatusOK {
			t.Errorf("a renewal of %s is answered %d %s", by, got.status, got.Detail)
		}
	}
	flood("token-0", 1)
	renew("token-0")
	if got := r.do("POST", "/v1/claim", "token-1", fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x"}]}`, 1)); got.state() != "granted" {
		t.Errorf("a claim of another credential is answered %d %s", got.status, got.text)
	}
	for n := 1; n < 8; n++ {
		flood(fmt.Sprint("token-", n), min(int64(n)+1, 4))
	}
	if got := r.do("POST", "/v1/claim", "token-1", `{"claims":[`+strings.Repeat(`{"key":"k","mode":"look"},`, 99)+`{"key":"k","mode":"look"}]}`); got.status != http.StatusTooManyRequests {
		t.Errorf("after the flood of all, a claim is answered %d %.200s", got.status, got.text)
	}
	for n := range 8 {
		renew(fmt.Sprint("token-", n))
	}
}

// keepRecord stores a record of n bytes under a key.
func keepRecord(t testing.TB, s store.Store, k store.Key, n int) {
	t.Helper()
	token, errs := store.NewToken(), make([]error, 1)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: k, Token: token, TTL: time.Hour, Permits: 1, Weight: 1}}, make([]store.Answer, 1)))
	testkit.Must(t, s.Settle(t.Context(), []store.Settlement{{Key: k, Token: token, Outcome: store.Keep, Data: make([]byte, n), Retention: time.Hour}}, errs))
	testkit.Must(t, errs[0])
}

package serve

import (
	"context"
	"fmt"
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

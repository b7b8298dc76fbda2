package page

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// counted counts the calls of a store. A list takes some time.
type counted struct {
	*memstore.Store
	claims, lists atomic.Int32
	takes         time.Duration
}

func (c *counted) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	c.claims.Add(1)
	return c.Store.Claim(ctx, claims, answers)
}

func (c *counted) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	c.lists.Add(1)
	time.Sleep(c.takes)
	return c.Store.List(ctx, q)
}

// open opens pages for a time, a little one after the other, and returns what each got.
func (c *counted) open(t *testing.T, pages int, during time.Duration) []string {
	t.Helper()
	h := New(c, &Options{Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	all := make([]*httptest.ResponseRecorder, pages)
	var open sync.WaitGroup
	for i := range all {
		all[i] = httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost/page/events", nil)
		r.RemoteAddr = "127.0.0.1:1"
		open.Go(func() { h.ServeHTTP(all[i], r) })
		time.Sleep(137 * time.Millisecond)
	}
	time.Sleep(during)
	cancel()
	open.Wait()
	got := make([]string, pages)
	for i := range all {
		got[i] = all[i].Body.String()
	}
	return got
}

// TestPagesShareTheirCost: ten open pages ask the store no more often than one does: what one has
// got, the others get within the same beat.
func TestPagesShareTheirCost(t *testing.T) {
	for _, pages := range []int{1, 10, maxStreams} {
		synctest.Test(t, func(t *testing.T) {
			under, err := memstore.New(nil)
			testkit.Must(t, err)
			defer under.Close()
			c := &counted{Store: under}
			began := time.Now()
			got := c.open(t, pages, time.Minute)
			most := int32(time.Since(began)/fresh) + 1
			if lists, claims := c.lists.Load(), c.claims.Load(); lists > most || claims > most || lists < 20 {
				t.Errorf("%d pages have made %d lists and %d claims in %v; want at most %d", pages, lists, claims, time.Since(began), most)
			}
			for _, text := range got {
				if n := strings.Count(text, "data: "); n < 30 {
					t.Errorf("of %d pages one has got %d messages in a minute", pages, n)
				}
			}
		})
	}
}

// TestListsAreSentOnce: a store that takes long is looked at for a fiftieth of the time, whatever
// the number of pages. Meanwhile the pages do not get again the lists that they have.
func TestListsAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under, err := memstore.New(nil)
		testkit.Must(t, err)
		defer under.Close()
		c := &counted{Store: under, takes: 600 * time.Millisecond}
		claims := make([]store.Claim, 2*200)
		for i := range claims {
			claims[i] = store.Claim{Key: store.Key{Name: string(rune('a' + i/2))}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
		}
		testkit.Must(t, under.Claim(t.Context(), claims, make([]store.Answer, len(claims))))
		for _, text := range c.open(t, 10, time.Minute) {
			messages, lists := strings.Count(text, "data: "), strings.Count(text, `"lists"`)
			// A look takes 0.6 s, and begins 30 s after the end of the one before.
			if messages < 30 || lists != 3 && lists != 2 {
				t.Errorf("a page has got lists %d times in %d messages", lists, messages)
			}
			with := strings.Index(text, "\n\n")
			without := strings.Index(text[with+2:], "\n\n")
			t.Logf("a message has %d bytes with the lists of 200 keys, and %d without", with, without)
		}
		if n := c.lists.Load(); n > 3 {
			t.Errorf("the store was looked at %d times", n)
		}
	})
}

// TestCounting: a page that is opened while the first look continues says so, and does not wait.
func TestCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under, err := memstore.New(nil)
		testkit.Must(t, err)
		defer under.Close()
		c := &counted{Store: under, takes: 5 * time.Second}
		text := c.open(t, 1, 10*time.Second)[0]
		first, _, _ := strings.Cut(text, "\n")
		if !strings.Contains(first, `"counting":true`) || strings.Contains(first, "lists") || strings.Contains(first, "error") {
			t.Errorf("the first message is %s", first)
		}
		if strings.Count(text, `"lists"`) != 1 {
			t.Errorf("the messages are %s", text)
		}
	})
}

// TestLong: the page lists a key that is held for five minutes, and says how long that is.
func TestLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under, err := memstore.New(nil)
		testkit.Must(t, err)
		defer under.Close()
		testkit.Must(t, under.Claim(t.Context(), []store.Claim{{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}}, make([]store.Answer, 1)))
		h := New(under, &Options{Logger: slog.New(slog.DiscardHandler)})
		for _, want := range []int{0, 1} {
			var sent *survey.Report
			r := httptest.NewRequest("GET", "/", nil)
			n := h.news(r, &Viewer{}, &sent)
			var l lists
			testkit.Must(t, json.Unmarshal(n.Lists, &l))
			if l.Long != want || len(l.Waits) != want || l.LongMS != 300_000 {
				t.Errorf("the lists are %+v; want %d keys", l, want)
			}
			time.Sleep(5 * time.Minute)
		}
	})
}

// TestWaitsAreOfTheirWaiters: a waiter that came after the last look has not waited as long as the one
// that had its place then.
func TestWaitsAreOfTheirWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under, err := memstore.New(nil)
		testkit.Must(t, err)
		defer under.Close()
		h := New(under, &Options{Logger: slog.New(slog.DiscardHandler)})
		claim := func() store.Claim {
			c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
			testkit.Must(t, under.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
			return c
		}
		seen := func(when string, want ...wait) {
			t.Helper()
			r := httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost/page/key?"+linkOf(store.Key{Name: "k"}), nil)
			r.RemoteAddr = "127.0.0.1:1"
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			var got line
			testkit.Must(t, json.Unmarshal(w.Body.Bytes(), &got))
			longest := slices.MaxFunc(want, func(a, b wait) int { return cmp.Compare(a.MS, b.MS) })
			if !slices.Equal(got.Seen, want) || got.Waited != longest {
				t.Errorf("%s, the waiters were seen for %v, and the key for %v; want %v", when, got.Seen, got.Waited, want)
			}
		}
		claim()
		first := claim()
		seen("at first", wait{0, true})
		time.Sleep(10 * time.Second)
		claim()
		seen("with a second one", wait{10_000, true}, wait{0, false})
		testkit.Must(t, under.Settle(t.Context(), []store.Settlement{{Key: first.Key, Token: first.Token}}, make([]error, 1)))
		seen("when the first one has gone", wait{0, false})
	})
}

// TestPageAndMetricsAgree: a page that is opened later shows a wait from when the program's metrics saw it
// first, to a viewer of one namespace, too.
func TestPageAndMetricsAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under, err := memstore.New(nil)
		testkit.Must(t, err)
		defer under.Close()
		live := survey.New(under, nil)
		h := New(under, &Options{Logger: slog.New(slog.DiscardHandler), Survey: live})
		look := func() *survey.Report {
			t.Helper()
			report, err := live.Look(t.Context(), survey.MetricsAge)
			testkit.Must(t, err)
			return report
		}
		look()
		shop, bank := "shop", "bank"
		for range 2 {
			c := store.Claim{Key: store.Key{Namespace: shop, Name: "k"}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
			testkit.Must(t, under.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
		}
		const scrape = 20 * time.Second
		for range 17 {
			time.Sleep(scrape)
			look()
		}
		if got := look().Namespaces[shop].OldestWait; got != 16*scrape {
			t.Fatalf("the metrics say %v", got)
		}
		for _, viewer := range []*Viewer{{}, {Namespace: &shop}, {Namespace: &bank}} {
			var sent *survey.Report
			var l lists
			testkit.Must(t, json.Unmarshal(h.news(httptest.NewRequest("GET", "/", nil), viewer, &sent).Lists, &l))
			want := []wait{{(16 * scrape).Milliseconds(), false}} // 5 min 20 s
			if viewer.Namespace == &bank {
				want = nil
			}
			var got []wait
			for _, k := range l.Waits {
				got = append(got, k.Waited)
			}
			if !slices.Equal(got, want) || l.Waiters != len(want) {
				t.Errorf("the page says %v of %d waiters; want %v", got, l.Waiters, want)
			}
		}
	})
}

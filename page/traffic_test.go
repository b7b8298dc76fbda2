package page

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestTraffic: what happened counts for five minutes, in the slot in which it happened.
func TestTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var traffic Traffic
		for _, kind := range []idempotency.EventKind{idempotency.EventRan, idempotency.EventReplayed, idempotency.EventConflict, idempotency.EventMismatch, idempotency.EventUnknown} {
			traffic.Request(t.Context(), idempotency.Event{Kind: kind})
		}
		traffic.StoreCall(dibs.StoreCall{})
		traffic.StoreCall(dibs.StoreCall{Err: context.Canceled}) // its caller went away
		traffic.StoreCall(dibs.StoreCall{Err: errors.New("refused")})
		time.Sleep(slot)
		traffic.Add("shop", Requests, 5)
		all := traffic.read(time.Now(), nil)
		for c, want := range [counts][2]int64{Requests: {5, 5}, Replays: {1, 0}, Conflicts: {1, 0}, Refusals: {2, 0}, StoreErrors: {1, 0}} {
			if got := [2]int64(all[c][slots-2:]); got != want {
				t.Errorf("count %d has %v in the last slots; want %v", c, got, want)
			}
		}
		time.Sleep((slots - 1) * slot)
		if all := traffic.read(time.Now(), nil); all[Requests][0] != 5 || all[Replays] != [slots]int64{} {
			t.Errorf("five minutes later it has %v", all)
		}
		time.Sleep(time.Hour)
		if all := traffic.read(time.Now(), nil); all != (happened{}) || len(traffic.of) > 0 {
			t.Errorf("an hour later it has %v", all)
		}
	})
}

// TestTrafficOfANamespace: it has what happened there and nothing of other namespaces, but for errors of
// the store.
func TestTrafficOfANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var traffic Traffic
		traffic.Add("shop", Requests, 5)
		traffic.Add("bank", Requests, 7)
		traffic.Add("bank", Conflicts, 2)
		traffic.StoreCall(dibs.StoreCall{Err: errors.New("refused")})
		for namespace, want := range map[string][counts]int64{"shop": {Requests: 5, StoreErrors: 1}, "bank": {Requests: 7, Conflicts: 2, StoreErrors: 1}, "other": {StoreErrors: 1}} {
			var got [counts]int64
			for c, each := range traffic.read(time.Now(), &namespace) {
				got[c] = each[slots-1]
			}
			if got != want {
				t.Errorf("of %s it has %v; want %v", namespace, got, want)
			}
		}
		for i := range 2 * maxNamespaces {
			traffic.Add(strconv.Itoa(i), Requests, 1)
		}
		if all := traffic.read(time.Now(), nil); len(traffic.of) > maxNamespaces || all[Requests][slots-1] != 12+2*maxNamespaces {
			t.Errorf("it counts %d namespaces, and %d in all", len(traffic.of), all[Requests][slots-1])
		}
	})
}

// An openPage gets what the server sends to a page, and counts its bytes.
type openPage struct {
	*httptest.ResponseRecorder
	got atomic.Int64
}

// Write takes a part of the answer.
func (p *openPage) Write(text []byte) (int, error) {
	p.got.Add(int64(len(text)))
	return p.ResponseRecorder.Write(text)
}

// newBubbled returns a page in a bubble, and what opens it. That returns the answer, whose status is
// there at once, and a channel that is closed when the page is.
func newBubbled(t *testing.T, viewer func(*http.Request) *Viewer) (open func(ctx context.Context) (*openPage, <-chan struct{})) {
	t.Helper()
	under, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { under.Close() })
	h := New(under, &Options{Logger: slog.New(slog.DiscardHandler), Viewer: viewer})
	return func(ctx context.Context) (*openPage, <-chan struct{}) {
		w, closed := &openPage{ResponseRecorder: httptest.NewRecorder()}, make(chan struct{})
		go func() {
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/page/events", nil))
			close(closed)
		}()
		synctest.Wait()
		return w, closed
	}
}

// TestClosedPagesDoNotCount: the bound is of pages that are open. One that was closed makes room.
func TestClosedPagesDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := newBubbled(t, func(*http.Request) *Viewer { return &Viewer{Name: "Lou"} })
		for round := range 3 {
			ctx, closeAll := context.WithCancel(t.Context())
			for i := range maxStreams {
				if w, _ := open(ctx); w.Code != 200 || w.got.Load() == 0 {
					t.Fatalf("round %d: page %d is answered %d %s", round, i, w.Code, w.Body)
				}
			}
			w, closed := open(ctx)
			<-closed
			if w.Code != 503 || w.Header().Get("Retry-After") == "" {
				t.Errorf("round %d: one more page is answered %d", round, w.Code)
			}
			closeAll()
			synctest.Wait()
		}
	})
}

// credentialKey has the credential of a page in its context.
type credentialKey struct{}

// TestAPageEndsWithItsCredential: a page that is open when its credential is taken away gets nothing
// more than the message of that moment. One with another credential stays open.
func TestAPageEndsWithItsCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var revoked atomic.Bool
		open := newBubbled(t, func(r *http.Request) *Viewer {
			if r.Context().Value(credentialKey{}) == "taken away" && revoked.Load() {
				return nil
			}
			return &Viewer{Name: "Lou"}
		})
		ctx, closeAll := context.WithCancel(t.Context())
		defer closeAll()
		one, closed := open(context.WithValue(ctx, credentialKey{}, "taken away"))
		other, _ := open(ctx)
		time.Sleep(3 * beat)
		synctest.Wait()
		revoked.Store(true)
		before, others := one.got.Load(), other.got.Load()
		time.Sleep(beat)
		synctest.Wait()
		select {
		case <-closed:
		default:
			t.Error("the page is open, and its credential is gone")
		}
		time.Sleep(3 * beat)
		synctest.Wait()
		if got := one.got.Load(); got != before || before == 0 {
			t.Errorf("the page has got %d bytes with its credential, and then %d", before, got)
		}
		if got := other.got.Load(); got <= others {
			t.Errorf("the page with another credential has got %d bytes, and then %d", others, got)
		}
		closeAll()
		synctest.Wait()
	})
}

// TestThePageHasNoTokens: a token lets its reader take a place or a lease. No page has one.
func TestThePageHasNoTokens(t *testing.T) {
	r := start(t, false)
	key := store.Key{Name: "nightly"}
	holder, waiter, reserved := store.NewToken(), store.NewToken(), store.NewToken()
	r.claim(
		store.Claim{Key: key, Token: holder, TTL: time.Hour},
		store.Claim{Key: key, Token: waiter, Mode: store.Queue, PlaceTTL: time.Hour},
		store.Claim{Key: key, Token: reserved, Mode: store.Reserve, PlaceTTL: time.Hour},
	)
	texts := map[string]string{"the list": string(r.first("actor").news.Lists)}
	_, texts["the key"] = r.do("GET", "/page/key?"+linkOf(key), "actor", "")
	_, texts["the search"] = r.do("GET", "/page/search?q=nightly", "actor", "")
	for name, text := range texts {
		if !strings.Contains(text, "nightly") || !strings.Contains(text, `"places":[{`) {
			t.Errorf("%s does not show the places: %s", name, text)
		}
		for _, token := range []store.Token{holder, waiter, reserved} {
			if !strings.Contains(text, token.ID()) {
				t.Errorf("%s does not show the attempt or the place %s: %s", name, token.ID(), text)
			}
			if strings.Contains(text, hex.EncodeToString(token[:])) || strings.Contains(text, `"token"`) {
				t.Errorf("%s has a token: %s", name, text)
			}
		}
	}
}

// TestASlowSignIn: a sign-in that does not arrive ends in seconds, and a long one is not read.
func TestASlowSignIn(t *testing.T) {
	for name, test := range map[string]struct {
		send   func(io.Writer)
		status int
		took   time.Duration
	}{
		"nothing":     {func(w io.Writer) {}, http.StatusRequestTimeout, maxPause},
		"a beginning": {func(w io.Writer) { _, _ = io.WriteString(w, `{"token":"`) }, http.StatusRequestTimeout, maxPause},
		"a byte now and then": {func(w io.Writer) {
			for range 100 {
				_, _ = io.WriteString(w, " ")
				time.Sleep(time.Second)
			}
		}, http.StatusRequestTimeout, maxPause},
		"a mebibyte": {func(w io.Writer) { _, _ = io.WriteString(w, strings.Repeat(" ", 1<<20)) }, http.StatusBadRequest, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, err := memstore.New(nil)
			testkit.Must(t, err)
			defer s.Close()
			h := New(s, &Options{SignIn: func(string) string { return "" }})
			defer h.Close()
			body := testkit.NewSlowBody()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				test.send(body.To)
			}()
			r := testkit.Request(t.Context(), t, http.MethodPost, "http://localhost/page/sign-in", body.PipeReader)
			r.Header.Set("Content-Type", "application/json")
			began := time.Now()
			h.ServeHTTP(body, r)
			if took := time.Since(began); body.Code != test.status || took != test.took {
				t.Errorf("%s: it is %d after %v; want %+v", name, body.Code, took, test)
			}
			body.CloseWithError(io.ErrClosedPipe)
			<-sent
		})
	}
}

package page

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// find returns what a search finds at once.
func (r *rig) find(q string) (keys []line, more bool) {
	r.t.Helper()
	var found struct {
		Keys []line
		More bool
	}
	_, text := r.do("GET", "/page/search?q="+url.QueryEscape(q), "", "")
	testkit.Must(r.t, json.Unmarshal([]byte(text), &found))
	return found.Keys, found.More
}

// findAll returns what a search through all keys finds, and its last line.
func (r *rig) findAll(q string) ([]line, found) {
	r.t.Helper()
	resp, text := r.do("GET", "/page/search?all=true&q="+url.QueryEscape(q), "", "")
	if resp.StatusCode != 200 {
		r.t.Fatalf("the search for %q is %d", q, resp.StatusCode)
	}
	return readFound(r.t, text)
}

func readFound(t *testing.T, text string) (keys []line, last found) {
	t.Helper()
	for lines := json.NewDecoder(strings.NewReader(text)); ; {
		var f found
		if err := lines.Decode(&f); err == io.EOF {
			return keys, last
		} else if err != nil {
			t.Fatal(err)
		}
		if last = f; f.Key != nil {
			keys = append(keys, *f.Key)
		}
	}
}

// TestSearchIsBounded: a search for what most keys have answers with some and says so.
func TestSearchIsBounded(t *testing.T) {
	r := start(t, true)
	for i := range hits + 1 {
		key := store.Key{Name: fmt.Sprintf("job %d", i)}
		r.claim(store.Claim{Key: key}, store.Claim{Key: key, Mode: store.Queue, PlaceTTL: time.Hour})
	}
	if keys, more := r.find("job"); len(keys) != hits || !more {
		t.Errorf("it finds %d keys, and more is %v", len(keys), more)
	}
	if keys, last := r.findAll("job"); len(keys) != hits || last.End != "many" {
		t.Errorf("it finds %d keys, and ends with %+v", len(keys), last)
	}
	if keys, last := r.findAll("no such job"); len(keys) != 0 || last.End != "all" || last.Looked != hits+1 {
		t.Errorf("it finds %d keys, and ends with %+v", len(keys), last)
	}
}

// queried keeps the queries of lists.
type queried struct {
	*memstore.Store
	queries []store.Query
}

func (s *queried) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	s.queries = append(s.queries, q)
	return s.Store.List(ctx, q)
}

// TestWholeKeyIsFoundWithoutAScan: a whole key is looked up in each namespace that has a live key. By a
// part, an ID or a digest, keys are looked for among those that a store finds without the others.
func TestWholeKeyIsFoundWithoutAScan(t *testing.T) {
	r := start(t, true)
	under := &queried{Store: r.store}
	h := New(under, &Options{Logger: slog.New(slog.DiscardHandler)})
	own, other := store.Key{Name: "done"}, store.Key{Namespace: "shop", Name: "done"}
	wanted := store.Key{Namespace: "shop", Name: "wanted"}
	token := store.NewToken()
	for _, key := range []store.Key{own, other} {
		r.claim(store.Claim{Key: key, Token: token})
		testkit.Must(t, r.store.Settle(t.Context(), []store.Settlement{{Key: key, Token: token, Outcome: store.Keep, Retention: time.Hour}}, make([]error, 1)))
	}
	r.claim(store.Claim{Key: wanted, Token: token}, store.Claim{Key: wanted, Mode: store.Queue, PlaceTTL: time.Hour})
	for q, want := range map[string]int{"done": 2, "wanted": 1, "wan": 1, wanted.Digest(): 1, token.ID(): 1, urn + token.ID(): 1, "don": 0, other.Digest(): 0} {
		under.queries = nil
		w, req := httptest.NewRecorder(), httptest.NewRequest("GET", "http://localhost/page/search?q="+url.QueryEscape(q), nil)
		req.RemoteAddr = "127.0.0.1:1"
		h.ServeHTTP(w, req)
		if n := strings.Count(w.Body.String(), `"link"`); n != want {
			t.Errorf("a search for %q finds %d keys: %s", q, n, w.Body)
		}
		for _, x := range under.queries {
			whole := x.Namespace != nil && x.Name != ""
			if !whole && (x.HeldFor < time.Minute || len(x.Conditions) == 0) {
				t.Errorf("a search for %q asks for %+v", q, x)
			}
		}
	}
	if keys, _ := r.findAll("don"); len(keys) != 2 {
		t.Errorf("through all keys it finds %v", keys)
	}
}

// endless is a store whose list does not end.
type endless struct{ *memstore.Store }

func (s endless) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for {
			select {
			case <-ctx.Done():
				yield(store.Entry{}, ctx.Err())
				return
			case <-time.After(time.Millisecond):
				q.Match(store.Key{Name: "another"})
			}
		}
	}
}

// TestSearchEnds: a search through all keys says how far it is, and stops in time, or when its viewer
// goes away. The next one begins then.
func TestSearchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under, err := memstore.New(nil)
		testkit.Must(t, err)
		defer under.Close()
		h := New(endless{under}, &Options{Logger: slog.New(slog.DiscardHandler)})
		search := func(ctx context.Context) string {
			w, req := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "http://localhost/page/search?all=true&q=x", nil)
			req.RemoteAddr = "127.0.0.1:1"
			h.ServeHTTP(w, req)
			return w.Body.String()
		}
		gone, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		search(gone)
		began := time.Now()
		text := search(t.Context())
		_, last := readFound(t, text)
		if took := time.Since(began); took != searchLimit || last.End != "late" || last.Looked < 20_000 {
			t.Errorf("after %v it ends with %+v", took, last)
		}
		if n := strings.Count(text, "\n"); n < int(searchLimit/progress)-1 {
			t.Errorf("it has said %d times how far it is", n)
		}
	})
}

// TestHitsAreToldApart: what a search finds has what tells it apart: the status of an answer, its age, and
// the host.
func TestHitsAreToldApart(t *testing.T) {
	r := start(t, true)
	scope := "http:GQ0p0hV7Hq3b8QkHn1oSLg:order-"
	keep := func(name string, data []byte) {
		token := store.NewToken()
		r.claim(store.Claim{Key: store.Key{Name: name}, Token: token})
		testkit.Must(t, r.store.Settle(t.Context(), []store.Settlement{{Key: store.Key{Name: name}, Token: token, Outcome: store.Keep, Data: data, Retention: time.Hour}}, make([]error, 1)))
	}
	for _, status := range []int{201, 402} {
		name := fmt.Sprint(scope, status)
		data, err := idempotency.EncodeAnswer(name, &idempotency.Answer{Status: status, Header: http.Header{}, Body: []byte("secret")})
		testkit.Must(t, err)
		keep(name, data)
	}
	keep("order-run", []byte(`{"v":1}`))
	r.claim(store.Claim{Key: store.Key{Name: scope + "held"}})
	all, last := r.findAll("order-")
	if last.End != "all" || len(all) != 4 {
		t.Fatalf("the search finds %d keys and ends with %+v", len(all), last)
	}
	at, _ := r.find(scope + "201")
	for _, l := range append(all, at...) {
		status, _ := strconv.Atoi(strings.TrimPrefix(l.Name, scope))
		switch {
		case l.Status != status || l.Body != nil:
			t.Errorf("%s is found with the status %d and the body %v", l.Name, l.Status, l.Body)
		case l.State == string(store.ConditionDone) && (l.Kept == nil || l.Kept.ID == ""):
			t.Errorf("%s is found with the record %+v", l.Name, l.Kept)
		case l.State == string(store.ConditionHeld) && (len(l.Runs) != 1 || l.Runs[0].Owner.Host != "worker-1"):
			t.Errorf("%s is found with the holders %+v", l.Name, l.Runs)
		}
	}
}

package httpstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// roundTripper sends requests to no network, so that time can be simulated.
type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// late is a Store over two servers of one store, the first of which is played by a test.
type late struct {
	*Store
	under *memstore.Store
	// first answers for the first server: with a problem, with an error of the line, or, with neither,
	// as the second one does.
	first func(verb string, body []byte) (problem string, err error)
	// settle, if not nil, is the servers' answer to settlements.
	settle error
	// settles, if not nil, is called for each call of settlements that is answered.
	settles func()
}

func newLate(t *testing.T) *late {
	under, err := memstore.New(nil)
	testkit.Must(t, err)
	l := &late{under: under}
	l.Store, err = Open("http://first,second", &Options{Client: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		testkit.Check(t, err)
		_, verb, _ := strings.Cut(r.URL.Path, leaseapi.Version+"/")
		w := httptest.NewRecorder()
		if r.URL.Hostname() == "first" {
			problem, err := l.first(verb, body)
			if err != nil {
				return nil, err
			}
			if problem != "" {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.WriteString(`{"type": "page#` + problem + `", "title": "No"}`)
				return w.Result(), nil
			}
		}
		_, _ = w.Write(l.answer(t, verb, body))
		return w.Result(), nil
	})}})
	testkit.Must(t, err)
	t.Cleanup(func() {
		testkit.Check(t, l.Close())
		testkit.Check(t, under.Close())
	})
	return l
}

// answer is what a server answers that has the store.
func (l *late) answer(t *testing.T, verb string, body []byte) []byte {
	var out []leaseapi.Answer
	switch verb {
	case "claim":
		call, err := leaseapi.ReadClaims(body)
		testkit.Check(t, err)
		for i := range call.Claims {
			call.Claims[i].Key.Namespace = ""
		}
		answers := make([]store.Answer, len(call.Claims))
		testkit.Check(t, l.under.Claim(context.Background(), call.Claims, answers))
		for i := range answers {
			out = append(out, leaseapi.AnswerOf(&answers[i]))
		}
	case "settle":
		if l.settles != nil {
			l.settles()
		}
		settlements, err := leaseapi.ReadSettlements(body)
		testkit.Check(t, err)
		errs := make([]error, len(settlements))
		for i := range settlements {
			settlements[i].Key.Namespace = ""
			errs[i] = l.settle
		}
		if l.settle == nil {
			testkit.Check(t, l.under.Settle(context.Background(), settlements, errs))
		}
		for _, err := range errs {
			out = append(out, leaseapi.Answer{Error: leaseapi.ErrorOf(err)})
		}
	}
	return leaseapi.WriteAnswers(out)
}

// claim claims a key for an hour.
func (l *late) claim(ctx context.Context) (store.Claim, store.Answer, error) {
	c := store.Claim{Key: store.Key{Name: "k"}, Token: store.Token{1}, TTL: time.Hour, Permits: 1, Weight: 1}
	answers := make([]store.Answer, 1)
	err := l.Claim(ctx, []store.Claim{c}, answers)
	return c, answers[0], err
}

// end settles the token, and returns the error of that.
func (l *late) end(t *testing.T, c store.Claim, o store.Outcome) error {
	t.Helper()
	errs := make([]error, 1)
	testkit.Must(t, l.Settle(t.Context(), []store.Settlement{{Key: c.Key, Token: c.Token, Outcome: o}}, errs))
	return errs[0]
}

// state is that of the key.
func (l *late) state(t *testing.T, c store.Claim) store.State {
	t.Helper()
	answers := make([]store.Answer, 1)
	testkit.Must(t, l.under.Claim(t.Context(), []store.Claim{{Key: c.Key, Mode: store.Look, Permits: 1, Weight: 1}}, answers))
	return answers[0].State
}

// TestALateClaimIsUndone: a server is frozen under a claim, its client gives up and settles the
// claim by another server, and the first server carries it out after that. Its lease or its place is
// undone, however late that is.
func TestALateClaimIsUndone(t *testing.T) {
	for _, after := range []time.Duration{lateUndo / 2, 2 * lateUndo, 40 * time.Second, doubtful - 2*maxLateUndo - lateUndo/2} {
		for _, mode := range []store.Mode{store.Try, store.Queue, store.Reserve} {
			t.Run(fmt.Sprintf("%v, mode %d", after, mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLate(t)
					wake := make(chan struct{})
					done := make(chan struct{})
					l.first = func(verb string, body []byte) (string, error) {
						go func() {
							defer close(done)
							<-wake
							l.answer(t, verb, body)
						}()
						return "", errors.New("the connection was reset")
					}
					ctx, giveUp := context.WithTimeout(t.Context(), time.Nanosecond)
					defer giveUp()
					<-ctx.Done()
					c := store.Claim{Key: store.Key{Name: "k"}, Mode: mode, Token: store.Token{1}, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
					if err := l.Claim(ctx, []store.Claim{c}, make([]store.Answer, 1)); err == nil {
						t.Fatal("the claim was answered")
					}
					if err := l.end(t, c, store.Undo); !errors.Is(err, store.ErrLost) {
						t.Fatalf("the undo is answered with %v", err)
					}
					time.Sleep(after)
					close(wake)
					<-done
					if s := l.state(t, c); s != store.Held {
						t.Fatalf("after the late claim the key's state is %d", s)
					}
					time.Sleep(maxLateUndo + lateUndo)
					if s := l.state(t, c); s != store.Free {
						t.Errorf("the key's state is %d", s)
					}
				})
			})
		}
	}
}

// TestLateUndoesEnd: they are as often as the documentation says, and then the token is forgotten.
func TestLateUndoesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLate(t)
		l.first = func(string, []byte) (string, error) { return "store-unavailable", nil }
		c, _, err := l.claim(t.Context())
		testkit.Must(t, err)
		settled := time.Now()
		var after []time.Duration
		l.settles = func() { after = append(after, time.Since(settled)) }
		testkit.Must(t, l.end(t, c, store.Release))
		time.Sleep(2 * doubtful)
		synctest.Wait()
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second}
		for d := 15 * time.Second; d <= 5*time.Minute; d += 15 * time.Second {
			want = append(want, d)
		}
		if !slices.Equal(after, want) {
			t.Errorf("the token is settled after %v; want %v", after, want)
		}
		if len(l.doubts)+len(l.late) > 0 || l.undoing {
			t.Errorf("left are %v, %v", l.doubts, l.late)
		}
	})
}

// TestDoubtsAreBounded: while no server answers, the tokens of claims do not fill the memory.
func TestDoubtsAreBounded(t *testing.T) {
	l := newLate(t)
	claims := make([]store.Claim, maxDoubts+1)
	for i := range claims {
		claims[i] = store.Claim{Token: store.NewToken()}
	}
	l.doubt(claims)
	if len(l.doubts) != maxDoubts {
		t.Errorf("%d tokens are remembered", len(l.doubts))
	}
}

// TestALeaseThatIsNotSettledIsNotUndone: a claim that was not answered is repeated and granted. A
// settlement that fails leaves the lease to its holder, who can settle again.
func TestALeaseThatIsNotSettledIsNotUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLate(t)
		l.first = func(string, []byte) (string, error) { return "store-unavailable", nil }
		c, a, err := l.claim(t.Context())
		if err != nil || a.State != store.Granted {
			t.Fatal(a, err)
		}
		l.settle = store.ErrFull
		if err := l.end(t, c, store.Release); !errors.Is(err, store.ErrFull) {
			t.Fatal(err)
		}
		time.Sleep(2 * lateUndo)
		l.settle = nil
		if s := l.state(t, c); s != store.Held {
			t.Fatalf("the key's state is %d", s)
		}
		testkit.Must(t, l.end(t, c, store.Release))
		time.Sleep(2 * lateUndo)
	})
}

// TestAServerThatStopsDidNothing: another server is asked, and its answer is the truth.
func TestAServerThatStopsDidNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLate(t)
		l.first = func(string, []byte) (string, error) { return leaseapi.Stopping, nil }
		c, a, err := l.claim(t.Context())
		if err != nil || a.State != store.Granted || len(l.doubts) > 0 {
			t.Fatal(a, err, l.doubts)
		}
		l.current.Store(0)
		testkit.Must(t, l.end(t, c, store.Release))
		l.current.Store(0)
		if err := l.end(t, c, store.Release); !errors.Is(err, store.ErrLost) {
			t.Errorf("a lease that is lost is settled with %v", err)
		}
	})
}

// TestASettlementThatOneServerMayHaveGot: the first server does not answer the settlement. The
// answer of the second one is definite only if it says that this server ended the lease, or that
// the record is not there.
func TestASettlementThatOneServerMayHaveGot(t *testing.T) {
	for _, test := range []struct {
		name     string
		done     bool // by the first server
		refused  error
		keep     bool
		ended    bool // the answer says so
		definite bool
	}{
		{"the first server did it", true, nil, false, false, false},
		{"the second server did it", false, nil, false, true, true},
		{"the second server refuses it", false, store.ErrFull, false, false, false},
		{"the first server wrote the record", true, nil, true, true, true},
		{"the second server finds no record", false, store.ErrLost, true, false, true},
		{"the second server refuses the record", false, store.ErrTooLarge, true, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLate(t)
				l.first = func(string, []byte) (string, error) { return "", nil }
				c, _, err := l.claim(t.Context())
				testkit.Must(t, err)
				l.first = func(verb string, body []byte) (string, error) {
					if test.done {
						l.answer(t, verb, body)
					}
					return "store-unavailable", nil
				}
				l.settle = test.refused
				x := store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Abandon}
				if test.keep {
					x.Outcome, x.Data, x.Retention = store.Keep, []byte("answer"), time.Hour
				}
				errs := make([]error, 1)
				testkit.Must(t, l.Settle(t.Context(), []store.Settlement{x}, errs))
				if ended, definite := errs[0] == nil, errs[0] == nil || store.Definite(errs[0]); ended != test.ended || definite != test.definite {
					t.Errorf("the settlement is answered with %v", errs[0])
				}
			})
		})
	}
}

// TestAPlaceThatIsReservedAgainStands: a place is given back, and reserved again before the claim
// that was not answered is undone once more.
func TestAPlaceThatIsReservedAgainStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLate(t)
		l.first = func(string, []byte) (string, error) { return "store-unavailable", nil }
		c := store.Claim{Key: store.Key{Name: "k"}, Token: store.Token{1}, Mode: store.Reserve, PlaceTTL: time.Hour}
		reserve := func(s store.Store) {
			t.Helper()
			answers := make([]store.Answer, 1)
			testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, answers))
			if !answers[0].Queued {
				t.Fatalf("the place is answered with %+v", answers[0])
			}
		}
		reserve(l)
		testkit.Must(t, l.end(t, c, store.Release))
		time.Sleep(lateUndo / 2)
		reserve(l)
		time.Sleep(2 * lateUndo)
		if s := l.state(t, c); s != store.Held {
			t.Fatalf("the place that was reserved again is gone: the key's state is %d", s)
		}
		testkit.Must(t, l.end(t, c, store.Release))
		reserve(l.under) // the first claim comes after all
		time.Sleep(2 * lateUndo)
		if s := l.state(t, c); s != store.Free {
			t.Errorf("the place of the late claim stands: the key's state is %d", s)
		}
	})
}

package idempotency_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/journal"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

var transactionRules = []rule{
	{"Effect and answer are committed together", func(t *testing.T) {
		g, j := newJournalRig(t, nil, write(http.StatusCreated))
		first := g.send()
		isFresh(t, first, http.StatusCreated)
		for range 3 {
			isReplay(t, g.send(), first)
		}
		committed(t, j, 1)
		if e := g.seen()[0]; !e.Stored || e.Kind != idempotency.EventRan {
			t.Errorf("observed %+v", e)
		}
	}},
	{"A refusal rolls back", func(t *testing.T) {
		g, j := newJournalRig(t, nil, write(http.StatusUnprocessableEntity))
		first := g.send()
		isFresh(t, first, http.StatusUnprocessableEntity)
		isReplay(t, g.send(), first)
		committed(t, j, 0)

		g, j = newJournalRig(t, nil, write(http.StatusInternalServerError))
		isFresh(t, g.send(), http.StatusInternalServerError)
		isFresh(t, g.send(), http.StatusInternalServerError)
		g.ran(2)
		committed(t, j, 0)

		options := &idempotency.Options{Commits: func(status int) bool { return status < 500 }}
		g, j = newJournalRig(t, options, write(http.StatusPaymentRequired))
		isFresh(t, g.send(), http.StatusPaymentRequired)
		committed(t, j, 1)

		g, j = newJournalRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			journal.Write(r.Context(), "row")
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
		})
		g.sendBrokenOrNot()
		committed(t, j, 0)

		g, j = newJournalRig(t, nil, func(_ http.ResponseWriter, r *http.Request) {
			journal.Write(r.Context(), "row")
			panic(http.ErrAbortHandler)
		})
		g.sendBroken()
		committed(t, j, 0)

		synctest.Test(t, func(t *testing.T) {
			g, j := newJournalRig(t, &idempotency.Options{HandlerLimit: 20 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
				journal.Write(r.Context(), "row")
				<-r.Context().Done()
				w.WriteHeader(http.StatusCreated)
			})
			isProblem(t, g.send(), "rolled-back", http.StatusServiceUnavailable)
			committed(t, j, 0)
		})
	}},
	{"A transaction in conflict runs again", func(t *testing.T) {
		g, j := newJournalRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			text, err := io.ReadAll(r.Body)
			testkit.Check(t, err)
			w.Header().Add("Try", "one")
			write(http.StatusCreated)(w, r)
			_, _ = w.Write(text)
		}, journal.Conflicted, journal.Conflicted, journal.Conflicted, journal.Conflicted)
		first := g.send()
		isFresh(t, first, http.StatusCreated)
		if got := first.Body.String(); got != `wrote{"amount":1200}` || len(first.Result().Header["Try"]) != 1 {
			t.Errorf("after four conflicts: %q, %v", got, first.Result().Header)
		}
		g.ran(5)
		committed(t, j, 1)
		if e := g.last(); e.Conflicts != 4 || e.Kind != idempotency.EventRan || !e.Stored {
			t.Errorf("observed %+v", e)
		}
		isReplay(t, g.send(), first)

		// A handler that fails because of the conflict is tried again, too.
		n := 0
		g, j = newJournalRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if n++; n == 1 {
				write(http.StatusInternalServerError)(w, r)
				return
			}
			write(http.StatusCreated)(w, r)
		}, journal.Conflicted)
		isFresh(t, g.send(), http.StatusCreated)
		committed(t, j, 1)

		// It sees the request as it was, whatever the one before made of it.
		g, j = newJournalRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Purpose") != "charge" || r.URL.Path != "/charges" {
				t.Errorf("a try got %v and the path %q", r.Header, r.URL.Path)
			}
			r.Header.Del("X-Purpose")
			r.URL.Path = "/"
			write(http.StatusCreated)(w, r)
		}, journal.Conflicted, journal.Conflicted)
		isFresh(t, g.send(with("X-Purpose", "charge")), http.StatusCreated)
		g.ran(3)
		committed(t, j, 1)

		// All tries together have the handler's time.
		synctest.Test(t, func(t *testing.T) {
			const limit = 10 * time.Second
			g, j := newJournalRig(t, &idempotency.Options{HandlerLimit: limit}, func(w http.ResponseWriter, r *http.Request) {
				write(http.StatusCreated)(w, r)
				select {
				case <-time.After(6 * time.Second):
				case <-r.Context().Done():
				}
			}, journal.Conflicted)
			start := time.Now()
			isProblem(t, g.send(), "rolled-back", http.StatusServiceUnavailable)
			if took := time.Since(start); took != limit {
				t.Errorf("two tries took %v together", took)
			}
			g.ran(2)
			committed(t, j, 0)
		})

		// What was sent cannot be taken back.
		g, j = newJournalRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			write(http.StatusCreated)(w, r)
			w.(http.Flusher).Flush()
		}, journal.Conflicted)
		g.sendBroken()
		g.ran(1)
		committed(t, j, 0)
	}},
	{"A failed commit leaves nothing", func(t *testing.T) {
		for name, ends := range map[string][]journal.Ending{
			"refused":   {journal.Refused},
			"conflicts": {journal.Conflicted, journal.Conflicted, journal.Conflicted, journal.Conflicted, journal.Conflicted},
			"cut off":   {journal.CutOff},
			"no other":  {journal.Conflicted, journal.Unbegun},
		} {
			g, j := newJournalRig(t, nil, write(http.StatusCreated), ends...)
			isProblem(t, g.send(), "rolled-back", http.StatusServiceUnavailable)
			committed(t, j, 0)
			if e := g.last(); e.Kind != idempotency.EventRolledBack || e.Err == nil || e.Stored {
				t.Errorf("%s: observed %+v", name, e)
			}
			isFresh(t, g.send(), http.StatusCreated)
			committed(t, j, 1)
		}
		// What a handler makes of a conflict is nothing to be kept.
		five := []journal.Ending{journal.Conflicted, journal.Conflicted, journal.Conflicted, journal.Conflicted, journal.Conflicted}
		g, j := newJournalRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if store.TransactionFrom(r.Context()).Conflicted(nil) {
				write(http.StatusConflict)(w, r)
				return
			}
			write(http.StatusCreated)(w, r)
		}, five...)
		isProblem(t, g.send(), "rolled-back", http.StatusServiceUnavailable)
		g.ran(dibs.MaxConflicts)
		isFresh(t, g.send(), http.StatusCreated)
		committed(t, j, 1)

		g, j = newJournalRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			write(http.StatusConflict)(w, r)
			w.(http.Flusher).Flush()
		}, journal.Conflicted)
		g.sendBroken()
		isFresh(t, g.send(), http.StatusConflict)
		committed(t, j, 0)

		g, j = newJournalRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			write(http.StatusCreated)(w, r)
			w.(http.Flusher).Flush()
		}, journal.Refused)
		g.sendBroken()
		committed(t, j, 0)
	}},
	{"The middleware ends the transaction", func(t *testing.T) {
		g, j := newJournalRig(t, nil, write(http.StatusCreated), journal.Ended)
		isProblem(t, g.send(), "transaction-ended", http.StatusInternalServerError)
		committed(t, j, 1)
		if e := g.last(); e.Kind != idempotency.EventInterrupted || !errors.Is(e.Err, dibs.ErrTransactionEnded) || e.Stored {
			t.Errorf("observed %+v", e)
		}
		g.ran(1)
	}},
	{"A commit with an unknown outcome is looked up", func(t *testing.T) {
		g, j := newJournalRig(t, nil, write(http.StatusCreated), journal.Unanswered)
		first := g.send()
		isFresh(t, first, http.StatusCreated)
		committed(t, j, 1)
		isReplay(t, g.send(), first)

		synctest.Test(t, func(t *testing.T) {
			g, j := newJournalRig(t, &idempotency.Options{StoreTimeout: 50 * time.Millisecond}, write(http.StatusCreated), journal.Unanswered)
			g.store.fail(failing("settle", errDown))
			isProblem(t, g.send(), "commit-unknown", http.StatusServiceUnavailable)
			g.store.heal()
			if w := g.send(); w.Code != http.StatusCreated || w.Result().Header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("the retry got %d %s", w.Code, w.Body)
			}
			committed(t, j, 1)
		})
	}},
	{"Without a transaction nothing runs", func(t *testing.T) {
		g, j := newJournalRig(t, nil, write(http.StatusCreated), journal.Unbegun)
		isProblem(t, g.send(), "store-unavailable", http.StatusServiceUnavailable)
		g.ran(0)
		isFresh(t, g.send(), http.StatusCreated)
		committed(t, j, 1)
	}},
}

// newJournalRig returns a rig whose runs are in transactions of a journal, which end
// so.
func newJournalRig(t *testing.T, o *idempotency.Options, handler http.HandlerFunc, ends ...journal.Ending) (*rig, *journal.Journal) {
	t.Helper()
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	j := journal.New(store, ends...)
	var options idempotency.Options
	if o != nil {
		options = *o
	}
	options.Transactor = j
	return newRigOn(t, &faulty{Store: store}, &options, handler), j
}

// write is a handler that writes a row and answers.
func write(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		journal.Write(r.Context(), "row")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "wrote")
	}
}

// committed checks how many rows were committed.
func committed(t *testing.T, j *journal.Journal, want int) {
	t.Helper()
	if got := j.Rows(); len(got) != want {
		t.Errorf("the journal has %q; want %d rows", got, want)
	}
}

// sendBrokenOrNot sends a request whose answer may be broken off or refused.
func (g *rig) sendBrokenOrNot() {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	g.send()
}

// A storm of duplicates over conflicts: every key ends with one row.
func TestTransactionStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, each = 20, 8
		var ends []journal.Ending
		for range dibs.MaxConflicts - 1 { // all of which may hit one key
			ends = append(ends, journal.Conflicted, journal.Unanswered, journal.Unanswered)
		}
		g, j := newJournalRig(t, &idempotency.Options{Wait: 10 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			journal.Write(r.Context(), r.Header.Get("Idempotency-Key"))
			w.WriteHeader(http.StatusCreated)
		}, ends...)
		var all sync.WaitGroup
		for k := range keys {
			for range each {
				all.Go(func() {
					w := httptest.NewRecorder()
					g.h.ServeHTTP(w, request(withKey(strconv.Itoa(k))))
					if w.Code != http.StatusCreated {
						t.Errorf("answered %d %s", w.Code, w.Body)
					}
				})
			}
		}
		all.Wait()
		rows := j.Rows()
		slices.Sort(rows)
		if len(rows) != keys || len(slices.Compact(rows)) != keys {
			t.Errorf("the journal has %q", rows)
		}
	})
}

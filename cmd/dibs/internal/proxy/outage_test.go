package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// failing is a store that does not answer while away is true. A call takes a millisecond.
type failing struct {
	*memstore.Store
	away atomic.Bool
}

func (s *failing) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	time.Sleep(time.Millisecond)
	if s.away.Load() {
		return errors.New("the network is down")
	}
	return s.Store.Claim(ctx, claims, answers)
}

// outageCounts returns the number of requests in each line about the store.
func outageCounts(t *testing.T, log string) (fails, answers []int) {
	t.Helper()
	counts := func(message string, withError bool) (all []int) {
		for _, l := range linesOf(t, log, message) {
			if l["level"] != "WARN" || (l["error"] != nil) != withError {
				t.Errorf("the line is %v", l)
			}
			all = append(all, int(l["requests"].(float64)))
		}
		return all
	}
	return counts("the store fails", true), counts("the store answers again", false)
}

// TestStoreAwayIsALineAMinute: while the store does not answer, many requests leave one line
// a minute, with the number of requests, whether the access log is on or off. When it
// answers, there is one more line.
func TestStoreAwayIsALineAMinute(t *testing.T) {
	for _, access := range []bool{true, false} {
		t.Run(fmt.Sprintf("access-log %v", access), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &failing{Store: inMemory(t)}
				s, log := newServer(t, store, "--access-log="+strconv.FormatBool(access), "--store-timeout=1s")
				sent := 0
				post := func(want int) {
					r := httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader("a"))
					r.Header.Set("Idempotency-Key", "k")
					w := httptest.NewRecorder()
					s.serve(w, r)
					sent++
					if w.Code != want {
						t.Errorf("the answer is %d; want %d", w.Code, want)
					}
				}
				post(502) // the store answers, and there is no origin
				store.away.Store(true)
				began := time.Now()
				for time.Since(began) < 3*outage.Pause-20*time.Second {
					post(503)
					time.Sleep(time.Second)
				}
				failed := sent - 1
				store.away.Store(false)
				post(502)
				post(502)
				fails, answers := outageCounts(t, log.String())
				if len(fails) != 3 || fails[0] != 1 || len(answers) != 1 || fails[1]+fails[2]+answers[0] != failed-1 {
					t.Errorf("in three minutes %d requests failed; the lines count %d, and %d after that", failed, fails, answers)
				}
				all := linesOf(t, log.String(), "request")
				refused := slices.DeleteFunc(all, func(l line) bool { return l["level"] != "INFO" })
				if want := map[bool]int{true: failed}[access]; len(refused) != want {
					t.Errorf("%d lines of requests; want %d", len(refused), want)
				}
			})
		})
	}
}

// TestOutage: which requests say that the store fails, and which say that it answers.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		o := outage.New(slog.New(slog.NewJSONHandler(log, nil)), "requests")
		down := errors.New("down")
		event := func(outcome idempotency.EventKind, change func(*idempotency.Event)) idempotency.Event {
			time.Sleep(time.Second)
			e := idempotency.Event{Kind: outcome, Start: time.Now(), Claiming: time.Millisecond}
			if change != nil {
				change(&e)
			}
			return e
		}
		late := event(idempotency.EventRan, nil)
		for _, e := range []idempotency.Event{
			event(idempotency.EventRan, nil),
			event(idempotency.EventUnavailable, func(e *idempotency.Event) { e.Err, e.Start, e.Claiming = down, time.Time{}, 0 }), // no temporary file
			event(idempotency.EventLost, func(e *idempotency.Event) { e.Settling, e.Err = 1, dibs.ErrLost }),
			event(idempotency.EventRan, func(e *idempotency.Event) { e.Settling, e.Err = 1, dibs.ErrTooLarge }),
			event(idempotency.EventOverloaded, func(e *idempotency.Event) { e.Settling, e.Err = 1, errors.New("MaxBodyMemory is reached") }),
		} {
			noteStore(o, e)
		}
		if log.Len() > 0 {
			t.Errorf("the store answers; the log has %s", log)
		}
		noteStore(o, event(idempotency.EventRan, func(e *idempotency.Event) { e.Settling, e.Err, e.StoreFailed = 1, down, true }))
		noteStore(o, event(idempotency.EventBypassed, func(e *idempotency.Event) { e.Err = down }))
		noteStore(o, event(idempotency.EventRan, func(e *idempotency.Event) { e.Settling, e.Err = 1, down }))
		noteStore(o, late)
		noteStore(o, event(idempotency.EventConflict, func(e *idempotency.Event) { e.Claiming = 0 })) // answered in the process
		noteStore(o, event(idempotency.EventCanceled, nil))
		if fails, answers := outageCounts(t, log.String()); !slices.Equal(fails, []int{1}) || len(answers) > 0 {
			t.Errorf("the store is away; the log has %s", log)
		}
		for range 5 { // it fails and answers by turns
			noteStore(o, event(idempotency.EventReplayed, nil))
			noteStore(o, event(idempotency.EventUnavailable, func(e *idempotency.Event) { e.Err = down }))
		}
		if fails, answers := outageCounts(t, log.String()); len(fails) != 1 || !slices.Equal(answers, []int{2}) {
			t.Errorf("by turns: the log has %s", log)
		}
	})
}

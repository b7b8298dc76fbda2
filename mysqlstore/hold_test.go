package mysqlstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
)

// reservation is a claim for a place that stands for an hour.
func reservation(key string, hold time.Duration) dibs.Claim {
	return dibs.Claim{
		Key: dibs.Key{Name: key}, Token: dibs.NewToken(), Mode: dibs.Reserve, Place: time.Hour, Hold: hold, Permits: 1,
	}
}

// refused makes a claim that is answered Held, and returns how long for.
func refused(t *testing.T, s *Store, c dibs.Claim) time.Duration {
	t.Helper()
	answers := make([]dibs.Answer, 1)
	if err := s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].State != dibs.Held {
		t.Fatalf("%+v, %v; want Held", answers[0], err)
	}
	return answers[0].Left
}

// TestWakeWhenAHoldIsOver: who waits behind a place that nobody redeems is woken when
// its Hold is over, also where others in other processes were kept by it first.
func TestWakeWhenAHoldIsOver(t *testing.T) {
	t.Parallel()
	o := &Options{Prefix: ownPrefix(), PruneEvery: -1} // which would find it as well, later
	s, other := open(t, mariadb().URL(), o), open(t, mariadb().URL(), o)
	woken := make(chan dibs.Token, 10)
	t.Cleanup(s.Notify(func(token dibs.Token) { woken <- token }))
	holder := dibs.Claim{Key: dibs.Key{Name: "k"}, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}
	answers, errs := make([]dibs.Answer, 1), make([]error, 1)
	if err := other.Claim(t.Context(), []dibs.Claim{holder}, answers); err != nil || answers[0].State != dibs.Granted {
		t.Fatal(answers[0], err)
	}
	refused(t, other, reservation("k", 50*time.Millisecond))
	waiter := holder
	waiter.Token, waiter.Mode, waiter.Place = dibs.NewToken(), dibs.Queue, time.Minute
	refused(t, s, waiter) // by the lease
	err := other.Settle(t.Context(), []dibs.Settlement{{Key: holder.Key, Token: holder.Token}}, errs)
	if err != nil || errs[0] != nil {
		t.Fatal(err, errs[0])
	}
	stranger := holder
	stranger.Token = dibs.NewToken()
	if left := refused(t, other, stranger); left > 50*time.Millisecond {
		t.Errorf("the place is in the way for %v", left)
	}
	select {
	case token := <-woken:
		if token != waiter.Token {
			t.Fatalf("%v was woken, want the waiter", token)
		}
	case <-time.After(failpoint.Limit):
		t.Fatal("the waiter was not woken")
	}
	if err := s.Claim(t.Context(), []dibs.Claim{waiter}, answers); err != nil || answers[0].State != dibs.Granted {
		t.Fatalf("the waiter was answered %+v, %v", answers[0], err)
	}
}

// TestPassedPlacesWakeOnce: who is behind places that have run out asks once, and then
// waits for the lease; also from a place that a lease has taken, and whose turn it is
// not.
func TestPassedPlacesWakeOnce(t *testing.T) {
	t.Parallel()
	for kind, due := range map[int64]bool{waits: true, reserved: true, taken: false, sought: false} {
		w := newWaiting(&Store{})
		token := dibs.NewToken()
		w.places[token] = &waiter{seen: kind}
		seen := []*asking{{token: token, kind: kind, passed: true}}
		for i := range 2 {
			got := w.due(seen)
			if (len(got) == 1) != due {
				t.Errorf("kind %d is woken %d times, want %v", kind, len(got), due)
			}
			if i == 0 {
				w.told(got)
				due = false
			}
		}
	}
}

// TestRefusalsWriteOnce: a claim that is refused writes only if it is the first that a
// place is in the way of.
func TestRefusalsWriteOnce(t *testing.T) {
	const k = "\x00k"
	front := place{seq: firstSeq, token: dibs.NewToken(), kind: called, ends: 1e9, lasts: 1e9, hold: 1e6}
	for i, want := range []int{1, 0, 0} {
		b := newBatch(namer{"dibs"}, nil, creating)
		st := newState(k)
		st.now, st.permits = 1000+int64(i), 1
		st.queue.add(front)
		st.queue.complete = true
		st.was = st.row()
		b.keys, b.states[k] = []string{k}, st
		c, a := dibs.Claim{Key: dibs.Key{Name: "k"}, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}, dibs.Answer{}
		if err := st.claim(&c, &terms{maxWaiters: 10}, &a); err != nil || a.State != dibs.Held {
			t.Fatalf("%+v, %v", a, err)
		}
		if left := time.Second - time.Duration(i)*time.Microsecond; a.Left != left {
			t.Errorf("claim %d: Left is %v, want %v", i, a.Left, left)
		}
		s := &script{}
		b.write(s)
		if len(s.ends) != want {
			t.Errorf("claim %d: %d statements, want %d: %s", i, len(s.ends), want, s.text)
		}
		front = *st.queue.places[0]
	}
}

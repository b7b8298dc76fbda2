package redisstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestGrantsWaitForReplicas: a grant that too few replicas have is lost with the
// master. Where Replicas says that it does not count until they have it, its
// waiter is woken, and what it is answered waits for them.
func TestGrantsWaitForReplicas(t *testing.T) {
	master := servertest.Redis(t, nil)
	replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
	replica.AwaitReplica()
	prefix := ownPrefix()
	for name, test := range map[string]struct {
		options *Options
		told    bool
	}{
		"none has to":      {&Options{Prefix: prefix}, true},
		"replicas have to": {&Options{Prefix: prefix, Replicas: 1, ReplicaWait: time.Minute}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, master.URL(), test.options)
			w := newWords(t, s)
			told := 0
			for range 20 {
				holder, waiter := lock("k"), lock("k", queued)
				mustGrant(t, s, holder)
				if a, err := claim(t, s, waiter); err != nil || a.State != dibs.Held {
					t.Fatalf("the waiter was answered %+v, %v", a, err)
				}
				mustSettle(t, s, holder, dibs.Release)
				if w.next(waiter.Token).State == dibs.Granted {
					told++
				}
				mustGrant(t, s, waiter)
				mustSettle(t, s, waiter, dibs.Release)
			}
			if told > 0 != test.told {
				t.Errorf("%d grants were told", told)
			}
		})
	}
}

// TestTellsNobodyThatClashes: one who does something else than another holder is
// not told a grant, and is answered so when it asks.
func TestTellsNobodyThatClashes(t *testing.T) {
	s := open(t, servertest.Redis(t, nil).URL(), nil)
	w := newWords(t, s)
	two := func(c *dibs.Claim) { c.Permits = 2 }
	does := func(what byte) func(*dibs.Claim) {
		return func(c *dibs.Claim) { c.Fingerprint = dibs.Fingerprint{what} }
	}
	for start := time.Now(); ; {
		a, b := lock("k", two), lock("k", two)
		this, that := lock("k", two, queued, does(1)), lock("k", two, queued, does(2))
		mustGrant(t, s, a)
		mustGrant(t, s, b)
		for _, c := range []dibs.Claim{this, that} {
			if a, err := claim(t, s, c); err != nil || a.State != dibs.Held {
				t.Fatalf("a waiter was answered %+v, %v", a, err)
			}
		}
		mustSettle(t, s, a, dibs.Release)
		told := w.next(this.Token).State == dibs.Granted
		mustGrant(t, s, this)
		mustSettle(t, s, b, dibs.Release)
		if word := w.next(that.Token); word.State != 0 {
			t.Errorf("one that does something else was told %+v", word)
		}
		if a, err := claim(t, s, that); err != nil || a.State != dibs.Mismatch {
			t.Errorf("one that does something else was answered %+v, %v", a, err)
		}
		mustSettle(t, s, this, dibs.Release)
		if told || t.Failed() {
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatal("nobody is ever told a grant")
		}
	}
}

// words are what the waiters of a store are told, by token.
type words struct {
	t     *testing.T
	heard chan word
	early map[dibs.Token]dibs.Answer
}

type word struct {
	token  dibs.Token
	answer dibs.Answer
}

func newWords(t *testing.T, s *Store) *words {
	w := &words{t: t, heard: make(chan word, 1000), early: map[dibs.Token]dibs.Answer{}}
	t.Cleanup(s.NotifyGrants(func(token dibs.Token, a dibs.Answer) { w.heard <- word{token, a} }))
	return w
}

// next returns the next word to a token.
func (w *words) next(token dibs.Token) dibs.Answer {
	w.t.Helper()
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	for {
		if a, ok := w.early[token]; ok {
			delete(w.early, token)
			return a
		}
		select {
		case heard := <-w.heard:
			w.early[heard.token] = heard.answer
		case <-late.C:
			w.t.Fatal("a waiter was told nothing")
		}
	}
}

package redisstore

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestZerosAtTheEnd: a claim is sent without the zero bytes at its end, and fingerprints and
// tokens that end with some are the same afterwards, by the short ways and by the long ones.
func TestZerosAtTheEnd(t *testing.T) {
	t.Parallel()
	s := open(t, servertest.Redis(t, nil).URL(), nil)
	other := store.Fingerprint{0: 2}
	for i, print := range []store.Fingerprint{{0: 1}, {0: 1, 20: 1}, {0: 1, 31: 1}} {
		with := func(print store.Fingerprint) store.Claim {
			return lock(fmt.Sprint("key ", i), func(c *store.Claim) {
				c.Fingerprint, c.Token[15], c.PlaceTTL = print, 0, 0
			})
		}
		first := with(print)
		mustGrant(t, s, first)
		mustGrant(t, s, first) // the same again is the long way
		if a, err := claim(t, s, with(other)); err != nil || a.State != store.Mismatch {
			t.Errorf("another fingerprint while it is held: %+v, %v", a, err)
		}
		if a, err := claim(t, s, with(print)); err != nil || a.State != store.Held {
			t.Errorf("the same fingerprint while it is held: %+v, %v", a, err)
		}
		if lost, err := settle(t, s, first, store.Keep); lost != nil || err != nil {
			t.Fatal(lost, err)
		}
		for print, want := range map[store.Fingerprint]store.State{print: store.Done, other: store.Mismatch} {
			c := with(print)
			answered(&c)
			if a, err := claim(t, s, c); err != nil || a.State != want {
				t.Errorf("%x with a record: %+v, %v; want state %v", print, a, err, want)
			}
		}
	}
}

// A claim that names a reserved place, but is granted at its own waiter's place, leaves the
// reserved place's Grace alone.
func TestGraceIsSetAtTheGrantedNumber(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	holder, waiter := lock("k"), lock("k", queued)
	job := lock("k", reserved, func(c *store.Claim) { c.Grace = time.Hour })
	mustGrant(t, s, holder)
	mustWait(t, s, waiter)
	mustWait(t, s, job)
	mustSettle(t, s, holder, store.Release)
	waiter.From, waiter.Grace = job.Token, time.Minute
	mustGrant(t, s, waiter)
	w := strings.TrimSuffix(s.names.state(job.Key), "s") + "w"
	place, err := s.client.Do(t.Context(), s.client.B().Hget().Key(w).Field(string(job.Token[:])).Build()).AsBytes()
	testkit.Must(t, err)
	if grace := time.Duration(binary.BigEndian.Uint64(place[16:])) * time.Microsecond; grace != time.Hour {
		t.Errorf("the reserved place's Grace is %v", grace)
	}
}

// TestFencesRiseWhileTheClockIsBehind: while the server's clock is behind the highest fence,
// each grant of a call, and of later calls, still has a fence above the one before, in the
// script's fast path and in its full path.
func TestFencesRiseWhileTheClockIsBehind(t *testing.T) {
	t.Parallel()
	prefix := testkit.Own()
	s := open(t, sharedRedis().URL()+"?prefix="+prefix, nil)
	mustGrant(t, s, lock("first"))
	client := s.client
	var fence string
	for _, name := range names(sharedRedis(), prefix) {
		if strings.HasSuffix(name, "fence") {
			fence = name
		}
	}
	last := uint64(time.Now().Add(24 * time.Hour).UnixMicro())
	testkit.Must(t, client.Do(t.Context(), client.B().Set().Key(fence).Value(strconv.FormatUint(last, 10)).Build()).Error())
	several := func(c *store.Claim) { c.Permits = 8 }
	for round := range 3 {
		claims := []store.Claim{lock(fmt.Sprint("a", round)), lock(fmt.Sprint("b", round)), lock("c", several), lock("d", several)}
		answers := make([]store.Answer, len(claims))
		testkit.Must(t, s.Claim(t.Context(), claims, answers))
		slices.SortFunc(answers, func(a, b store.Answer) int { return cmp.Compare(a.Fence, b.Fence) })
		for _, a := range answers {
			if a.State != store.Granted || a.Fence <= last {
				t.Errorf("%+v after the fence %d", a, last)
			}
			last = a.Fence
		}
	}
}

// TestLaterFencesAreAboveAHeldAnswer: a grant that is made in the same call after a Held
// answer, at the same instant of the server's clock, has a fence above the answer's.
func TestLaterFencesAreAboveAHeldAnswer(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	several := func(c *store.Claim) { c.Permits = 8 }
	mustGrant(t, s, lock("held"))
	mustGrant(t, s, lock("several", several))
	answers := make([]store.Answer, 2)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{lock("held"), lock("several", several)}, answers))
	if held, granted := answers[0], answers[1]; held.State != store.Held || granted.State != store.Granted || held.Fence >= granted.Fence {
		t.Errorf("%+v, then %+v", held, granted)
	}
}

package redisstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
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

// TestRecordThatIsNeverTaken: a too large record has another error than one that may be stored later.
func TestRecordThatIsNeverTaken(t *testing.T) {
	s := &Store{}
	s.options.MaxRecord = 10
	for n, want := range map[int]error{10: nil, 11: store.ErrTooLarge} {
		if err := s.fits(n); !errors.Is(err, want) {
			t.Errorf("a record of %d bytes: %v, want %v", n, err, want)
		}
	}
}

// TestRecordThatTheServerNeverReads: a record above the server's own limit is refused for
// good, and the settlements that are sent with it are done.
func TestRecordThatTheServerNeverReads(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, &servertest.RedisOptions{Directives: []string{"proto-max-bulk-len 1mb"}})
	s := open(t, server.URL(), nil)
	settlements, errs := make([]store.Settlement, 3), make([]error, 3)
	for i := range settlements {
		c := lock(string(rune('a' + i)))
		if a, err := claim(t, s, c); err != nil || a.State != store.Granted {
			t.Fatalf("%+v, %v", a, err)
		}
		settlements[i] = store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Hour}
	}
	settlements[1].Data = make([]byte, 2<<20)
	// The server hangs up after its answer, which may get lost. Records may be sent again.
	testkit.Eventually(t, "all are answered", func() bool {
		err := s.Settle(t.Context(), settlements, errs)
		if err != nil && !errors.Is(err, ErrUnreachable) {
			t.Error(err)
		}
		return err == nil
	})
	if !errors.Is(errs[1], store.ErrTooLarge) || !strings.Contains(errs[1].Error(), "proto-max-bulk-len") {
		t.Errorf("the large record: %v", errs[1])
	}
	for _, i := range []int{0, 2} {
		var a store.Answer
		testkit.Eventually(t, "a claim is answered", func() (ok bool) {
			var err error
			if a, err = claim(t, s, lock(string(rune('a'+i)), answered)); err != nil && !errors.Is(err, ErrUnreachable) {
				t.Error(err)
			}
			return err == nil
		})
		if errs[i] != nil || a.State != store.Done {
			t.Errorf("the record sent with it: %v; %+v", errs[i], a)
		}
	}
}

// TestExpiredTogether: of leases that nobody looked at since they expired, the one that ended last
// is the last attempt, for the next claim and in a listing. The order of their grants does not
// matter.
func TestExpiredTogether(t *testing.T) {
	t.Parallel()
	for _, lastFirst := range []bool{true, false} {
		s := open(t, ownURL(), nil)
		two := func(c *store.Claim) { c.Permits = 2 }
		early, late := lock("k", two), lock("k", two)
		both := []store.Claim{early, late}
		if lastFirst {
			slices.Reverse(both)
		}
		for _, c := range both {
			mustGrant(t, s, c)
		}
		// One script each: nothing is looked at when the first has expired.
		for c, ttl := range map[*store.Claim]time.Duration{&early: time.Second, &late: 1100 * time.Millisecond} {
			testkit.Must(t, renewal(t.Context(), s, store.Renewal{Key: c.Key, Token: c.Token, TTL: ttl, Progress: c.Token[:]}))
		}
		var e store.Entry
		testkit.Eventually(t, "both have expired", func() bool { // a listing only reads
			for got, err := range s.List(t.Context(), store.Query{Namespace: &early.Key.Namespace, Name: "k"}) {
				testkit.Must(t, err)
				e = got
			}
			return e.Condition == store.ConditionAbandoned
		})
		if len(e.Runs) != 1 || e.Runs[0].ID != late.Token.ID() || e.Runs[0].Attempt != 2 {
			t.Errorf("listed are %+v; want attempt 2 of %s", e.Runs, late.Token.ID())
		}
		if a := mustGrant(t, s, lock("k", two)); a.Attempt != 3 || string(a.Progress) != string(late.Token[:]) {
			t.Errorf("the next claim was answered %+v; want the progress of the one that ended last", a)
		}
	}
}

// TestListMissesNothing: brief leases, abandoned keys and places that block are listed by queries
// that select them, and not only what is under the listed names.
func TestListMissesNothing(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	mustGrant(t, s, lock("brief", brief))
	abandoned := lock("abandoned", brief)
	mustGrant(t, s, abandoned)
	mustSettle(t, s, abandoned, store.Abandon)
	blocker := lock("blocked", brief)
	mustGrant(t, s, blocker)
	mustWait(t, s, lock("blocked", brief, func(c *store.Claim) { c.Mode, c.Grace = store.Reserve, time.Hour }))
	mustSettle(t, s, blocker, store.Release)
	if a, err := claim(t, s, lock("blocked", brief)); err != nil || a.State != store.Held {
		t.Fatalf("a claim behind the place was answered %+v, %v", a, err)
	}
	for _, test := range []struct {
		q    store.Query
		want []string
	}{
		{store.Query{}, []string{"abandoned", "blocked", "brief"}},
		{store.Query{Conditions: []store.Condition{store.ConditionHeld}}, []string{"brief"}},
		{store.Query{Conditions: []store.Condition{store.ConditionHeld}, HeldFor: time.Microsecond}, []string{"brief"}},
		{store.Query{Conditions: []store.Condition{store.ConditionAbandoned}, HeldFor: longHeld}, []string{"abandoned"}},
		{store.Query{Conditions: []store.Condition{store.ConditionHeld, store.ConditionAbandoned}, HeldFor: longHeld}, []string{"abandoned"}},
		{store.Query{Conditions: []store.Condition{store.ConditionWaiting}}, []string{"blocked"}},
		{store.Query{Conditions: []store.Condition{store.ConditionWaiting, store.ConditionHeld}, HeldFor: longHeld, Places: true}, []string{"blocked"}},
	} {
		var got []string
		for e, err := range s.List(t.Context(), test.q) {
			testkit.Must(t, err)
			got = append(got, e.Key.Name)
			if e.Key.Name == "blocked" && (e.Reserved != 1 || test.q.Places && (len(e.Places) != 1 || e.Places[0].Blocks <= 0)) {
				t.Errorf("%+v lists %+v", test.q, e)
			}
		}
		if slices.Sort(got); !slices.Equal(got, test.want) {
			t.Errorf("%+v lists %q; want %q", test.q, got, test.want)
		}
	}
}

// TestCancelledCall: a call whose context ends while the server has it returns. Its
// caller gives back what it may have got.
func TestCancelledCall(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	w := servertest.NewWire(t, server.Addr())
	// No limit of the store's own ends the call.
	s := overClient(t, rueidis.ClientOption{
		InitAddress: []string{w.Addr()}, DisableCache: true, ForceSingleClient: true, ConnWriteTimeout: 2 * testkit.Limit,
	})
	held, waits, free := lock("held"), lock("held", queued), lock("free")
	mustGrant(t, s, held)
	mustBeConnected(t, server, s, lock("held", queued))
	w.Set(wire.Trouble{Lose: [2]bool{wire.Replies: true}}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Claim(ctx, []store.Claim{waits, free}, make([]store.Answer, 2)) }()
	testkit.Eventually(t, "the server has it", func() bool {
		return server.Must("EXISTS", newName(s, free.Key, 's')) == int64(1)
	})
	cancel()
	if err := testkit.Await(t, "the call's end", done); !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
	w.Cut() // the connection that lost its replies
	w.Mend()
	for _, c := range []store.Claim{free, waits} {
		testkit.Eventually(t, "it is undone over another connection", func() bool {
			_, err := settle(t, s, c, store.Undo)
			return err == nil
		})
	}
	if server.Must("EXISTS", newName(s, free.Key, 's')) != int64(0) {
		t.Error("the lease of the cancelled call is still there")
	}
	if n := waitersOf(t, open(t, server.URL(), &Options{Prefix: s.Prefix()}), held.Key); n != 1 {
		t.Errorf("%d wait; the place of the cancelled call should be gone", n)
	}
}

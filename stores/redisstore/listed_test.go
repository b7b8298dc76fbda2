package redisstore

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// brief is a lease that nobody looks for.
func brief(c *store.Claim) { c.TTL = longHeld - time.Second }

// TestListedNames: the listed names are those of keys with places, with a lease that ends a minute or
// more after its grant, and with one that may run at most once. When that is over, they are gone.
func TestListedNames(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	listed := func(when string, want ...string) {
		t.Helper()
		var got []string
		all, _ := server.Must("ZRANGE", s.names.listed(""), 0, -1).([]any)
		for _, name := range all {
			if k, ok := s.names.parse(name.(string)); ok {
				got = append(got, k.Name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s, the listed names are those of %q; want %q", when, got, want)
		}
	}
	once := func(c *store.Claim) { c.AtMostOnce = true }

	short := lock("short", brief)
	mustGrant(t, s, short)
	listed("after a short lease")
	if err := renewal(t.Context(), s, store.Renewal{Key: short.Key, Token: short.Token, TTL: longHeld}); err != nil {
		t.Fatal(err)
	}
	listed("after a renewal", "short")
	mustSettle(t, s, short, store.Release)
	listed("after its release")

	long := lock("long", func(c *store.Claim) { c.TTL = longHeld })
	mustGrant(t, s, long)
	listed("after a long lease", "long")
	mustSettle(t, s, long, store.Keep)
	listed("after its record")

	unsure := lock("unsure", brief, once)
	mustGrant(t, s, unsure)
	listed("after a lease that runs at most once", "unsure")
	mustSettle(t, s, unsure, store.Abandon)
	listed("after its abandonment", "unsure")
	if done, err := s.Resolve(t.Context(), unsure.Key, "", nil, time.Hour); !done || err != nil {
		t.Fatal(done, err)
	}
	listed("after its settlement")

	holder, waiter := lock("wanted", brief), lock("wanted", brief, queued)
	mustGrant(t, s, holder)
	mustWait(t, s, waiter)
	listed("after a waiter", "wanted")
	mustSettle(t, s, holder, store.Release)
	mustGrant(t, s, waiter)
	mustSettle(t, s, waiter, store.Release)
	listed("when nobody waits any more")

	forced := lock("forced")
	mustGrant(t, s, forced)
	listed("after one more", "forced")
	if n, err := s.ForceRelease(t.Context(), forced.Key, ""); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	listed("after its forced release")

	var names []string
	claims, settlements := make([]store.Claim, 150), make([]store.Settlement, 150)
	for i := range claims {
		claims[i] = lock(fmt.Sprintf("%03d", i))
		settlements[i] = store.Settlement{Key: claims[i].Key, Token: claims[i].Token, Outcome: store.Release}
		names = append(names, claims[i].Key.Name)
	}
	testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, len(claims))))
	listed("after a batch", names...)
	testkit.Must(t, s.Settle(t.Context(), settlements, make([]error, len(settlements))))
	listed("after its release")
}

// TestNamesOfTheDead: a holder that died leaves a name. Scripts remove more of those than they add.
func TestNamesOfTheDead(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	long := time.Now().Add(-time.Hour).UnixMilli()
	dead := func(n int) {
		args := []any{"ZADD", s.names.listed("")}
		for i := range n {
			args = append(args, long, s.names.state(key(fmt.Sprint("dead ", i))))
		}
		server.Must(args...)
	}
	left := func() any { return server.Must("ZCOUNT", s.names.listed(""), 0, long) }
	dead(1)
	testkit.Eventually(t, "a brief lease removes a name", func() bool {
		for range 200 {
			c := lock("busy", brief)
			mustGrant(t, s, c)
			mustSettle(t, s, c, store.Release)
		}
		return left() == int64(0)
	})

	const batches, size = 20, 250
	dead(batches * size)
	for n := range batches {
		claims := make([]store.Claim, size)
		for i := range claims {
			claims[i] = lock(fmt.Sprint(n, " ", i))
		}
		testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, len(claims))))
	}
	if n := left(); n != int64(0) {
		t.Errorf("after as many leases as there were names of the dead, %v of those are left", n)
	}
}

// TestListedUntilTheStateExpires: a name is listed with the expiry of its state, even after that has
// come nearer: otherwise the name of a waiter that died would stay for as long as an unknown outcome.
func TestListedUntilTheStateExpires(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	once := lock("k", func(c *store.Claim) { c.AtMostOnce = true })
	mustGrant(t, s, once)
	mustWait(t, s, lock("k", queued, brief))
	mustSettle(t, s, once, store.Release)
	expires, _ := server.Must("PEXPIRETIME", s.names.state(once.Key)).(int64)
	text, _ := server.Must("ZSCORE", s.names.listed(""), s.names.state(once.Key)).(string)
	score, err := strconv.ParseInt(text, 10, 64)
	if err != nil || expires <= 0 || score > expires+time.Hour.Milliseconds() {
		t.Errorf("the state expires at %d ms, and its name is listed with %q", expires, text)
	}
}

// TestListingCostsTheBriefNothing: a lease that is taken and released within a minute, without a
// waiter, costs the server no command for the listed names.
func TestListingCostsTheBriefNothing(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	cycle := func() {
		c := lock("brief", brief)
		mustGrant(t, s, c)
		mustSettle(t, s, c, store.Release)
	}
	cycle() // the first one makes the listed names
	before := commandsOf(server)
	const cycles = 20
	for range cycles {
		cycle()
	}
	took := since(before, commandsOf(server))
	delete(took, "zrange") // now and then, for names of expired states
	delete(took, "script|load")
	// Of a claim: the time, the highest fence before and after, the state. Of a release: the time,
	// the state before and after.
	if want := map[string]int{"time": 2 * cycles, "get": 2 * cycles, "set": 2 * cycles, "del": cycles}; !maps.Equal(took, want) {
		t.Errorf("%d cycles took %v; want %v", cycles, took, want)
	}
}

// TestWhoWaitsIsListedWithoutAScan: to find who waits and what hangs, a listing reads nothing of the
// keys that are done, or that are held for a moment.
func TestWhoWaitsIsListedWithoutAScan(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	const others = 2000
	for n := range others / 250 {
		claims, settlements := make([]store.Claim, 500), make([]store.Settlement, 250)
		for i := range claims {
			claims[i] = lock(fmt.Sprintf("%d.%d", n, i), brief)
			if i < len(settlements) {
				settlements[i] = store.Settlement{Key: claims[i].Key, Token: claims[i].Token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Hour}
			}
		}
		testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, len(claims))))
		testkit.Must(t, s.Settle(t.Context(), settlements, make([]error, len(settlements))))
	}
	const wanted = 5
	for i := range wanted {
		mustGrant(t, s, lock(fmt.Sprint("wanted ", i), brief))
		mustWait(t, s, lock(fmt.Sprint("wanted ", i), queued))
	}
	unsure := lock("unsure", func(c *store.Claim) { c.AtMostOnce = true })
	mustGrant(t, s, unsure)
	mustSettle(t, s, unsure, store.Abandon)
	before := commandsOf(server)
	found := map[store.Condition]int{}
	for e, err := range s.List(t.Context(), store.Query{HeldFor: longHeld, Conditions: []store.Condition{store.ConditionHeld, store.ConditionWaiting, store.ConditionUnknown}}) {
		testkit.Must(t, err)
		found[e.Condition]++
	}
	took := since(before, commandsOf(server))
	if want := map[store.Condition]int{store.ConditionHeld: wanted, store.ConditionUnknown: 1}; !maps.Equal(found, want) {
		t.Errorf("it lists %v; want %v", found, want)
	}
	if took["scan"] != 0 || took["zscan"] != 1 || took["get"] > wanted+1 {
		t.Errorf("it took %v", took)
	}
}

// TestListedNamesOfOthers: if another program has its own value in the place of the listed names,
// leases go on, and a listing says so.
func TestListedNamesOfOthers(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	server.Must("SET", s.names.listed(""), "theirs")
	c := lock("k")
	mustGrant(t, s, c)
	mustWait(t, s, lock("k", queued))
	var failed error
	for _, err := range s.List(t.Context(), store.Query{HeldFor: longHeld, Conditions: []store.Condition{store.ConditionHeld}}) {
		failed = err
	}
	if failed == nil || !strings.Contains(failed.Error(), "another program") {
		t.Errorf("the listing fails with %v", failed)
	}
	mustSettle(t, s, c, store.Release)
}

// TestListReadsNoRecordsForLiveKeys: a listing of the live keys goes through the names, and reads
// nothing of a key that is done.
func TestListReadsNoRecordsForLiveKeys(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	const live, done = 10, 5000
	for i := range live {
		mustGrant(t, s, lock(fmt.Sprint("held ", i)))
	}
	for n := range done / 250 {
		claims, settlements := make([]store.Claim, 250), make([]store.Settlement, 250)
		for i := range claims {
			claims[i] = lock(fmt.Sprintf("order %d.%d", n, i))
			settlements[i] = store.Settlement{Key: claims[i].Key, Token: claims[i].Token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Hour}
		}
		testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, len(claims))))
		testkit.Must(t, s.Settle(t.Context(), settlements, make([]error, len(settlements))))
	}
	list := func(most int, conditions ...store.Condition) (n int, took map[string]int) {
		t.Helper()
		before := commandsOf(server)
		for _, err := range s.List(t.Context(), store.Query{Conditions: conditions}) {
			testkit.Must(t, err)
			if n++; n == most {
				break
			}
		}
		return n, since(before, commandsOf(server))
	}
	// Of a live key: its state, and whether it has a record.
	if n, took := list(done, store.ConditionHeld, store.ConditionWaiting); n != live || took["get"] > 2*live {
		t.Errorf("%d of %d live keys are listed with %v", n, live, took)
	}
	if n, took := list(100, store.ConditionDone); n != 100 || took["get"] > 2*1024 {
		t.Errorf("%d keys that are done are listed with %v", n, took)
	}
}

package redisstore

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// inLongQueue is what is done at a key with many reserved places.
var inLongQueue = []struct {
	name string
	do   func(q *longQueue)
}{
	{"reserve, give up", func(q *longQueue) {
		c := lock("k", reserved)
		mustWait(q.t, q.s, c)
		mustSettle(q.t, q.s, c, store.Release)
	}},
	{"claim, release", func(q *longQueue) { mustSettle(q.t, q.s, q.claim(), store.Release) }},
	{"claim, keep", func(q *longQueue) { mustSettle(q.t, q.s, q.claim(), store.Keep) }},
	{"claim, abandon, give up", func(q *longQueue) {
		place := q.places[0]
		mustSettle(q.t, q.s, q.claim(), store.Abandon)
		mustSettle(q.t, q.s, place, store.Release)
	}},
	{"claim too early", func(q *longQueue) { mustWait(q.t, q.s, lock("k", q.last)) }},
	{"look from the last place", func(q *longQueue) { mustWait(q.t, q.s, lock("k", q.last, looks)) }},
	{"wait, give up", func(q *longQueue) {
		c := lock("k", queued)
		mustWait(q.t, q.s, c)
		mustSettle(q.t, q.s, c, store.Release)
	}},
}

func reserved(c *store.Claim) { c.Mode = store.Reserve }
func looks(c *store.Claim)    { c.Mode = store.Look }

// longQueue is a key with reserved places, in their order.
type longQueue struct {
	t      testing.TB
	s      *Store
	places []store.Claim
}

// reserve reserves n places, each with those edits.
func reserve(t testing.TB, s *Store, n int, edits ...func(*store.Claim)) *longQueue {
	t.Helper()
	q := &longQueue{t: t, s: s}
	for len(q.places) < n {
		some := make([]store.Claim, min(500, n-len(q.places)))
		answers := make([]store.Answer, len(some))
		for i := range some {
			some[i] = lock("k", append(edits, reserved)...)
		}
		testkit.Must(t, s.Claim(t.Context(), some, answers))
		for _, a := range answers {
			if a.Err != nil || !a.Queued {
				t.Fatalf("a reservation was answered %+v", a)
			}
		}
		q.places = append(q.places, some...)
	}
	return q
}

// claim takes the key from the first place.
func (q *longQueue) claim() store.Claim {
	place := q.places[0].Token
	q.places = q.places[1:]
	c := lock("k", func(c *store.Claim) { c.From = place })
	mustGrant(q.t, q.s, c)
	return c
}

// last makes a claim one from the last place.
func (q *longQueue) last(c *store.Claim) { c.From = q.places[len(q.places)-1].Token }

// TestLongQueue: what is done at a key with thousands of places takes the server
// the same commands as with a few, and none that goes through all of them.
func TestLongQueue(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	through := []string{"hgetall", "hvals", "hkeys"}
	for _, op := range inLongQueue {
		t.Run(op.name, func(t *testing.T) {
			var calls []map[string]int
			for _, n := range []int{600, 1800} {
				server.Must("FLUSHALL")
				q := reserve(t, s, n, func(c *store.Claim) { c.PlaceTTL = time.Hour })
				before := commandsOf(server)
				op.do(q)
				took := since(before, commandsOf(server))
				for _, listens := range []string{"subscribe", "pubsub|numsub"} {
					delete(took, listens) // it begins when a claim has waited
				}
				calls = append(calls, took)
			}
			// Any script may look for expired names once, by the server's clock.
			if more := calls[1]["zrange"] - calls[0]["zrange"]; max(more, -more) <= calls[0]["time"] {
				calls[1]["zrange"] = calls[0]["zrange"]
			}
			if !maps.Equal(calls[0], calls[1]) {
				t.Errorf("with 600 places it takes %v, and with 1,800 %v", calls[0], calls[1])
			}
			for _, name := range through {
				if calls[1][name] > 0 {
					t.Errorf("%s goes through the whole queue", name)
				}
			}
		})
	}
}

// TestLongQueueIsCounted: a listing tells waiters from reserved places in a queue of any length.
// Of the places behind the first 500 it reads only the names, 500 with a command.
func TestLongQueueIsCounted(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	var calls []map[string]int
	for _, n := range []int{600, 2600} {
		server.Must("FLUSHALL")
		q := reserve(t, s, n, func(c *store.Claim) { c.PlaceTTL = time.Hour })
		q.claim()
		for _, at := range []int{0, 1, n - 2} { // jobs that wait, in front and at the end
			mustWait(t, s, lock("k", queued, func(c *store.Claim) { c.From = q.places[at].Token }))
		}
		mustWait(t, s, lock("k", queued))
		before := commandsOf(server)
		k, waiters, reserved := key("k"), 0, 0
		for e, err := range s.List(t.Context(), store.Query{Namespace: &k.Namespace, Name: k.Name}) {
			testkit.Must(t, err)
			waiters, reserved = e.Waiters, e.Reserved
		}
		if waiters != 4 || reserved != n-4 {
			t.Errorf("of %d places: %d waiters and %d reserved places; want 4 and %d", n, waiters, reserved, n-4)
		}
		calls = append(calls, since(before, commandsOf(server)))
	}
	if calls[1]["hmget"] != calls[0]["hmget"] || calls[1]["zrange"] != calls[0]["zrange"]+4 {
		t.Errorf("with 600 places it takes %v, and with 2,600 %v", calls[0], calls[1])
	}
}

// TestManyRunOut: a claim passes thousands of places that ran out in a few steps, even if it
// only looks, and it still finds the waiter behind them.
func TestManyRunOut(t *testing.T) {
	t.Parallel()
	const dead = 3000
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	for name, edit := range map[string]func(*store.Claim){"try": func(*store.Claim) {}, "look": looks} {
		t.Run(name, func(t *testing.T) {
			server.Must("FLUSHALL")
			reserve(t, s, dead, func(c *store.Claim) { c.PlaceTTL = time.Millisecond })
			alive := lock("k", reserved)
			mustWait(t, s, alive)
			testkit.Eventually(t, "all others have run out", func() bool {
				before := commandsOf(server)
				a, err := claim(t, s, lock("k", edit))
				if err != nil || a.State != store.Held {
					t.Fatalf("a stranger was answered %+v, %v; one place stands", a, err)
				}
				if calls := since(before, commandsOf(server)); calls["zrem"] > dead/100 || calls["hmget"] > dead/100 {
					t.Fatalf("it took %v", calls)
				}
				return a.Ahead == 1
			})
			mustGrant(t, s, lock("k", func(c *store.Claim) { c.From = alive.Token }))
		})
	}
}

// commandsOf returns how many of each command a server has carried out in scripts.
func commandsOf(server *servertest.RedisServer) map[string]int {
	text, _ := server.Must("INFO", "commandstats").(string)
	calls := map[string]int{}
	for _, m := range statsOfCommand.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[2])
		calls[m[1]] = n
	}
	for _, name := range []string{"info", "hello", "ping", "eval", "evalsha"} {
		delete(calls, name)
	}
	return calls
}

var statsOfCommand = regexp.MustCompile(`cmdstat_([\w|]+):calls=(\d+)`)

// since returns what is more now than before.
func since(before, now map[string]int) map[string]int {
	more := map[string]int{}
	for name, n := range now {
		if n > before[name] {
			more[name] = n - before[name]
		}
	}
	return more
}

// TestMemoryComesBack: after thirty thousand keys the server is as it was.
func TestMemoryComesBack(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, &servertest.RedisOptions{Directives: []string{"hz 100"}})
	s := open(t, server.URL(), nil)
	use := func(n, first int) {
		const batch, workers = 500, 4
		var working sync.WaitGroup
		for w := range workers {
			working.Go(func() {
				claims, answers := make([]store.Claim, batch), make([]store.Answer, batch)
				settlements, errs := make([]store.Settlement, batch), make([]error, batch)
				for from := w * batch; from < n; from += workers * batch {
					for i := range claims {
						claims[i] = lock(fmt.Sprintf("key %d", first+from+i), answered)
						x := store.Settlement{Key: claims[i].Key, Token: claims[i].Token}
						if i%2 == 0 {
							x.Outcome, x.Data, x.Retention = store.Keep, []byte("answer"), 10*time.Millisecond
						}
						settlements[i] = x
					}
					if err := s.Claim(t.Context(), claims, answers); err != nil {
						t.Error(err)
						return
					}
					if err := s.Settle(t.Context(), settlements, errs); err != nil {
						t.Error(err)
						return
					}
					for i := range claims {
						if answers[i].State != store.Granted || errs[i] != nil {
							t.Errorf("key %d was answered %+v and %v", first+from+i, answers[i], errs[i])
							return
						}
					}
				}
			})
		}
		working.Wait()
	}
	memory := func() int64 {
		server.Must("MEMORY", "PURGE")
		n, err := strconv.ParseInt(server.Info("used_memory"), 10, 64)
		testkit.Must(t, err)
		return n
	}
	empty := func() bool { return server.Must("DBSIZE") == int64(2) } // the fence and the listed names

	use(2000, 0) // scripts, connections and their buffers
	testkit.Eventually(t, "the first keys are gone", empty)
	before := memory()
	use(30_000, 2000)
	testkit.Eventually(t, "all keys are gone", empty)
	// Thirty thousand keys of one byte would be 1.5 MB.
	const most = 256 << 10
	testkit.Eventually(t, "the memory is back where it was", func() bool { return memory()-before < most })
	t.Logf("memory: %d bytes before, %d after", before, memory())
	leftover(t, server, "dibs")
}

// TestOutOfMemoryWithPlaces: a lease ends, and others go on, without memory even
// where a place goes or stands, or progress is passed on.
func TestOutOfMemoryWithPlaces(t *testing.T) {
	t.Parallel()
	reserved := func(c *store.Claim) { c.Mode = store.Reserve }
	two := func(c *store.Claim) { c.Permits = 2 }
	for _, x := range []struct {
		name    string
		outcome store.Outcome
		left    bool // the reserved place still stands
	}{
		{"Release", store.Release, false}, {"Keep", store.Keep, false}, {"Abandon", store.Abandon, true}, {"Undo", store.Undo, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, nil)
			s := open(t, server.URL(), nil)
			blocker, place, next := lock("k"), lock("k", reserved), lock("k", reserved)
			mustGrant(t, s, blocker)
			mustWait(t, s, place)
			mustWait(t, s, next)
			mustSettle(t, s, blocker, store.Release)
			worker := lock("k", func(c *store.Claim) { c.From = place.Token })
			mustGrant(t, s, worker)
			server.Must("CONFIG", "SET", "maxmemory", 1<<20)
			mustSettle(t, s, worker, x.outcome)
			other := lock("k", func(c *store.Claim) { c.From = next.Token })
			a, err := claim(t, s, other)
			if want := map[bool]store.State{true: store.Held, false: store.Granted}[x.left]; err != nil || a.State != want {
				t.Errorf("the place behind it was answered %+v, %v; want state %d", a, err, want)
			}
		})
	}
	t.Run("Renew", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t, nil)
		s := open(t, server.URL(), nil)
		alive, place := lock("k", two), lock("k", two, reserved)
		mustGrant(t, s, alive)
		mustWait(t, s, place)
		dead := lock("k", two, func(c *store.Claim) { c.From = place.Token })
		mustGrant(t, s, dead)
		testkit.Must(t, renewal(t.Context(), s, store.Renewal{Key: dead.Key, Token: dead.Token, TTL: 50 * time.Millisecond, Progress: []byte("half")}))
		server.Must("CONFIG", "SET", "maxmemory", 1<<20)
		testkit.Eventually(t, "the other lease has run out", func() bool {
			a, err := claim(t, s, lock("k", two, func(c *store.Claim) { c.Mode = store.Look; c.From = place.Token }))
			return err == nil && a.State == store.Free
		})
		if answer, err := renew(t, s, alive); answer != nil || err != nil {
			t.Errorf("the live lease's renewal was answered %v, %v", answer, err)
		}
		mustSettle(t, s, alive, store.Release)
	})
}

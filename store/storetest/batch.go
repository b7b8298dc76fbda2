package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/store"
)

var batchProperties = []Property{
	property("InvalidClaimsFailAlone",
		"Independent callers share a batch. The invalid claim of one fails with nothing done for it, and the others are answered.", func(t *Trial) {
			p := t.process()
			invalid := map[string]edit{
				"an empty key":                 func(c *store.Claim) { c.Key.Name = "" },
				"a key of 513 bytes":           func(c *store.Claim) { c.Key.Name = strings.Repeat("k", store.MaxKey+1) },
				"a space in the namespace":     func(c *store.Claim) { c.Key.Namespace = "a b" },
				"a NUL in the namespace":       func(c *store.Claim) { c.Key.Namespace = "a\x00" },
				"a namespace of 65 bytes":      func(c *store.Claim) { c.Key.Namespace = strings.Repeat("n", store.MaxNamespace+1) },
				"a zero token":                 func(c *store.Claim) { c.Token = store.Token{} },
				"TTL 0":                        ttl(0),
				"a negative TTL":               ttl(-long),
				"a TTL of a nanosecond":        ttl(1),
				"permits 0":                    permits(0),
				"negative permits":             permits(-1),
				"too many permits":             permits(store.MaxPermits + 1),
				"AtMostOnce with 2 permits":    func(c *store.Claim) { c.Permits, c.AtMostOnce = 2, true },
				"an unknown mode":              func(c *store.Claim) { c.Mode = store.Look + 1 },
				"weight 0":                     weight(0),
				"a weight above permits":       weight(2),
				"a queue without a PlaceTTL":   func(c *store.Claim) { c.Mode, c.PlaceTTL = store.Queue, 0 },
				"a reserve without a PlaceTTL": func(c *store.Claim) { c.Mode, c.PlaceTTL = store.Reserve, 0 },
				"a reserve from a place":       func(c *store.Claim) { c.Mode, c.From = store.Reserve, store.NewToken() },
				"a claim from its own":         func(c *store.Claim) { c.From = c.Token },
				"a try with a Grace":           grace(long),
				"a negative Grace":             func(c *store.Claim) { c.Mode, c.Grace = store.Reserve, -1 },
				"a queue with a Grace":         func(c *store.Claim) { c.Mode, c.Grace = store.Queue, long },
			}
			for what, wrong := range invalid {
				k := key(what)
				answers := p.claims(
					lock(key("before: "+what), store.NewToken()),
					lock(k, store.NewToken(), wrong),
					lock(key("after: "+what), store.NewToken()),
				)
				t.granted("the element before", answers[0], 1)
				t.granted("the element after", answers[2], 1)
				if answers[1].Err == nil {
					t.Errorf("%s: %s, want an Err", what, stateName(answers[1].State))
				}
				t.granted("the same key, validly, after "+what, p.try(k, store.NewToken()), 1)
			}
		}),
	property("InvalidSettlementsFailAlone",
		"An invalid settlement changes nothing: the lease stays, and its holder can settle it correctly.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a, answerable), 1)
			t.granted("a neighbour", p.try(key("neighbour"), a, answerable), 1)
			errs := p.settlements(
				store.Settlement{Key: k, Token: a, Outcome: store.Keep, Data: []byte("x")},
				store.Settlement{Key: k, Token: a, Outcome: store.Keep, Data: []byte("x"), Retention: 1},
				store.Settlement{Key: k, Token: a, Outcome: store.Undo + 1},
				store.Settlement{Key: key(""), Token: a},
				store.Settlement{Key: key("neighbour"), Token: a},
			)
			t.alone("keep without a retention", errs[0])
			t.alone("keep for a nanosecond", errs[1])
			t.alone("an unknown outcome", errs[2])
			t.alone("an empty key", errs[3])
			t.ok("the neighbour's release", errs[4])
			t.state("another claim", p.try(k, store.NewToken(), answerable), store.Held)
			t.ok("keep, properly", p.keep(k, a, "answer"))
		}),
	property("SameKeyInOneBatch",
		"A burst of duplicates arrives in one batch. Each element is a claim of its own, and one of them is granted.", func(t *Trial) {
			p := t.process()
			k := key("k")
			for _, mode := range []store.Mode{store.Try, store.Queue} {
				var claims []store.Claim
				for _, token := range tokens(5) {
					c := lock(k, token, answerable)
					c.Mode = mode
					claims = append(claims, c, lock(key("other "+token.ID()), token))
				}
				winner := -1
				places := map[int]bool{}
				for i, a := range p.claims(claims...) {
					switch {
					case i%2 == 1:
						t.granted("another key between", a, 1)
					case a.State == store.Granted && winner < 0:
						winner = i
					default:
						t.state("a loser", a, store.Held)
						if a.Queued != (mode == store.Queue) {
							t.Fatalf("a loser in mode %d: Queued is %v", mode, a.Queued)
						}
						places[i] = true
					}
				}
				if winner < 0 {
					t.Fatal("no claim was granted")
				}
				var ends []store.Settlement
				for i := range places {
					if mode == store.Queue {
						ends = append(ends, store.Settlement{Key: k, Token: claims[i].Token})
					}
				}
				ends = append(ends, store.Settlement{Key: k, Token: claims[winner].Token})
				for _, err := range p.settlements(ends...) {
					t.ok("settling them all in one batch", err)
				}
				t.state("a look after that", p.look(k), store.Free)
			}
		}),
	property("SameElementTwiceInOneBatch",
		"A claim may be sent again before its first copy was answered, and both copies may be in one batch.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			answers := p.claims(lock(k, a), lock(k, a))
			first, second := t.granted("one copy", answers[0], 1), t.granted("the other", answers[1], 1)
			if first != second {
				t.Fatalf("two copies of one claim got the fences %d and %d", first, second)
			}
			keep := store.Settlement{Key: k, Token: a, Outcome: store.Keep, Data: []byte("answer"), Retention: long}
			for _, err := range p.settlements(keep, keep) {
				t.ok("keep, twice", err)
			}
			t.done("a reader", p.look(k, answerable), "answer")

			// Two renewals of a lease: the progress of either is kept, and neither is lost.
			for i, saves := range []int{0, 1} {
				k, token := key("renewed "+itoa(i)), store.NewToken()
				t.granted("a claim", p.claim(lock(k, token)), 1)
				renewals := []store.Renewal{{Key: k, Token: token, TTL: long}, {Key: k, Token: token, TTL: long}}
				renewals[saves].Progress = []byte("half")
				for _, err := range p.renewals(renewals...) {
					t.ok("a renewal, twice", err)
				}
				t.ok("abandon", p.settlements(store.Settlement{Key: k, Token: token, Outcome: store.Abandon})[0])
				t.handed("the next holder", p.claim(lock(k, store.NewToken())), 2, "half")
			}

			// Two releases of a lease: one ends it, and the other finds it lost.
			released, token := key("released"), store.NewToken()
			t.granted("a claim", p.claim(lock(released, token)), 1)
			release := store.Settlement{Key: released, Token: token}
			errs := p.settlements(release, release)
			if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), store.ErrLost) {
				t.Fatalf("two releases of one lease: %v; want nil and ErrLost", errs)
			}
		}),
	property("LargeBatch",
		"A busy client sends everything that waits in one call. Answer i belongs to element i, however the store sorts and splits the batch.", func(t *Trial) {
			const n = 1000
			p := t.process()
			// Every tenth key is held by another token beforehand.
			claims := make([]store.Claim, n)
			held := make([]store.Claim, 0, n/10)
			for i := range claims {
				// 7919 is prime: the keys are in no order that a sort would keep.
				claims[i] = lock(key("k"+itoa(i*7919%n)), store.NewToken())
				if i%10 == 0 {
					other := claims[i]
					other.Token = store.NewToken()
					held = append(held, other)
				}
			}
			for _, a := range p.claims(held...) {
				t.granted("a key held beforehand", a, 1)
			}
			renewals := make([]store.Renewal, n)
			settlements := make([]store.Settlement, n)
			for i, a := range p.claims(claims...) {
				if i%10 == 0 {
					t.state("element "+itoa(i), a, store.Held)
				} else {
					t.granted("element "+itoa(i), a, 1)
				}
				renewals[i] = store.Renewal{Key: claims[i].Key, Token: claims[i].Token, TTL: long}
				settlements[i] = store.Settlement{
					Key: claims[i].Key, Token: claims[i].Token,
					Outcome: store.Keep, Data: []byte(claims[i].Key.Name), Retention: long,
				}
			}
			for name, errs := range map[string][]error{
				"renewal":    p.renewals(renewals...),
				"settlement": p.settlements(settlements...),
			} {
				for i, err := range errs {
					if i%10 == 0 && name == "renewal" {
						t.lost("renewal "+itoa(i), err)
					} else if i%10 != 0 && name == "renewal" {
						t.ok("renewal "+itoa(i), err)
					} else if (err == nil) == (i%10 == 0) {
						t.Fatalf("settlement %d: %v", i, err)
					}
				}
			}
			for i, c := range claims {
				claims[i] = lock(c.Key, store.NewToken(), answerable)
			}
			for i, a := range p.claims(claims...) {
				if i%10 == 0 {
					t.state("element "+itoa(i), a, store.Held)
				} else {
					t.done("element "+itoa(i), a, claims[i].Key.Name)
				}
			}
		}),
}

var cancelProperties = []Property{
	property("CancelledCallReturns",
		"A slow or dead backend must not hold a caller that gives up. The call may have happened, and its token settles it.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			returns := func(what string, call func()) {
				t.Helper()
				start := time.Now()
				if call(); time.Since(start) > limit {
					t.Errorf("%s with a cancelled context took %v", what, time.Since(start))
				}
			}
			// Whether the calls fail or not is up to the store.
			returns("Claim", func() { _ = p.store.Claim(ctx, []store.Claim{lock(k, a)}, make([]store.Answer, 1)) })
			t.undone(p, k, a)
			t.granted("the claim", p.try(k, a), 1)
			returns("Renew", func() {
				_ = p.store.Renew(ctx, []store.Renewal{{Key: k, Token: a, TTL: long}}, make([]error, 1))
			})
			t.ok("renew", p.renew(k, a, long))
			returns("Settle", func() { _ = p.store.Settle(ctx, []store.Settlement{{Key: k, Token: a}}, make([]error, 1)) })
			t.undone(p, k, a)
		}),
	property("CancelledInFlight",
		"A claim whose context ends under way may or may not have the key or a place. To settle its token leaves nothing behind in either case.", func(t *Trial) {
			p, q := t.process(), t.process()
			for i := range 40 {
				k, holder, a := key("k"+itoa(i)), store.NewToken(), store.NewToken()
				queued := i%2 == 1
				c := lock(k, a)
				if queued {
					t.granted("the holder", q.try(k, holder), 1)
					c.Mode = store.Queue
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(2000))*time.Microsecond)
				answers := make([]store.Answer, 1)
				err := p.store.Claim(ctx, []store.Claim{c}, answers)
				cancel()
				switch {
				case err != nil:
				case errors.Is(answers[0].Err, store.ErrBusy): // in a time as short as that
				case queued:
					t.waits("a claim that was in time", answers[0], 0)
				default:
					t.granted("a claim that was in time", answers[0], 1)
				}
				if queued {
					t.settled(p, k, a)
					t.ok("release", q.release(k, holder))
				}
				t.undone(p, k, a)
			}
		}).heavy(),
}

// settled settles a token that may or may not have a lease or a place.
func (t *Trial) settled(p *process, k store.Key, a store.Token) {
	t.Helper()
	if err := p.release(k, a); err != nil && !isLost(err) {
		t.Fatalf("settling an unknown outcome: %v, want nil or ErrLost", err)
	}
}

// undone settles an unknown outcome until the key is free. It does so again and again, as a
// client without an answer does, because the call whose context ended may arrive after the
// first settlement.
func (t *Trial) undone(p *process, k store.Key, a store.Token) {
	t.Helper()
	t.poll("a free key after an unknown outcome was settled", func() bool {
		t.settled(p, k, a)
		return p.look(k).State == store.Free
	})
}

var raceProperties = []Property{
	property("CounterUnderTheLock",
		"Many callers in many processes read a number, add one and write it back, each under the lock. If two of them overlap once, the sum is too small. They use no wake-ups.", func(t *Trial) {
			const callers, rounds = 12, 12
			procs := []*process{t.process(), t.process(), t.process()}
			k := key("k")
			// The steps are atomic, because a lock that lives in another
			// process orders them without the race detector's knowledge. The
			// whole is not.
			var counter, inside atomic.Int64
			var last atomic.Uint64
			var running sync.WaitGroup
			for i := range callers {
				p := procs[i%len(procs)]
				running.Go(func() {
					for range rounds {
						a := store.NewToken()
						var d store.Answer
						t.poll("the lock", func() bool {
							d = p.queue(k, a)
							return d.State == store.Granted
						})
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d callers in the critical section", n)
						}
						if before := last.Swap(d.Fence); d.Fence <= before {
							t.Errorf("the fence %d does not rise above the last one, %d", d.Fence, before)
						}
						n := counter.Load()
						runtime.Gosched()
						counter.Store(n + 1)
						inside.Add(-1)
						t.ok("release", p.release(k, a))
					}
				})
			}
			running.Wait()
			if n := counter.Load(); n != callers*rounds {
				t.Fatalf("the counter is %d after %d increments", n, callers*rounds)
			}
		}).heavy(),
	property("DuplicatesRunOnce",
		"A client retries, a proxy retries, a user clicks twice: one of all the duplicates runs, and all get its answer.", func(t *Trial) {
			const keys, duplicates = 20, 8
			procs := []*process{t.process(), t.process(), t.process()}
			var runs [keys]atomic.Int64
			var running sync.WaitGroup
			for i := range keys * duplicates {
				p, n := procs[i%len(procs)], i%keys
				k, a := key("k"+itoa(n)), store.NewToken()
				running.Go(func() {
					var d store.Answer
					t.poll("an answer", func() bool {
						d = p.queue(k, a, answerable, asked(k.Name))
						return d.State != store.Held
					})
					if d.State == store.Granted {
						runs[n].Add(1)
						t.ok("keep", p.keep(k, a, "answer "+a.ID()))
						d = p.try(k, a, answerable, asked(k.Name))
					}
					t.state("a duplicate", d, store.Done)
					if first := p.look(k, answerable); string(first.Record.Data) != string(d.Record.Data) {
						t.Errorf("two duplicates were answered %q and %q", d.Record.Data, first.Record.Data)
					}
				})
			}
			running.Wait()
			for n := range runs {
				if r := runs[n].Load(); r != 1 {
					t.Errorf("the request %d ran %d times", n, r)
				}
			}
		}).heavy(),
}

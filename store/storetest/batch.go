package storetest

import (
	"errors"
	"strings"

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

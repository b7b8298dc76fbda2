package storetest

import (
	"time"

	"github.com/dibs-go/dibs/store"
)

var expiryProperties = []Property{
	property("LeaseEndsOnTime",
		"The key of a crashed holder becomes free when its lease expires. Not earlier, because what the holder started may still run. Not later, because others wait.", func(t *Trial) {
			p, q := t.process(), t.process()
			k := key("k")
			before := time.Now()
			t.granted("the claim", p.try(k, store.NewToken(), ttl(t.short())), 1)
			t.ends("the lease", before, time.Now(), t.short(), func() bool {
				a := q.try(k, store.NewToken())
				if a.State == store.Held {
					return false
				}
				t.granted("the successor", a, 2)
				return true
			})
		}),
	property("ExpiredLeaseStaysExpired",
		"A lease that has expired has ended, even if no call has noticed it. If a late renewal or settlement still worked, another caller could hold the key by then.", func(t *Trial) {
			p := t.process()
			revivals := map[string]func(k store.Key, a store.Token) error{
				"renew":   func(k store.Key, a store.Token) error { return p.renew(k, a, long) },
				"release": p.release,
				"keep":    func(k store.Key, a store.Token) error { return p.keep(k, a, "late") },
				"abandon": p.abandon,
				"undo":    p.undo,
			}
			a := store.NewToken()
			for name := range revivals {
				t.granted("the claim", p.try(key(name), a, ttl(t.short())), 1)
			}
			t.outlast(t.short())
			for name, revive := range revivals {
				k := key(name)
				t.lost(name+" after the end", revive(k, a))
				t.granted("the successor", p.try(k, store.NewToken(), answerable), 2)
				t.lost(name+" after the succession", revive(k, a))
			}
		}),
	property("ExpiredLeaseIsANewGrant",
		"A claim that arrives again after its lease expired is a new grant. The old fence and the old count would hide that the lease was abandoned in between.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			fence := t.granted("the claim", p.try(k, a, ttl(t.short())), 1)
			t.outlast(t.short())
			if again := t.granted("the claim again, after the end", p.try(k, a), 2); again <= fence {
				t.Fatalf("the second lease's fence %d does not rise above the first one's %d", again, fence)
			}
		}),
	property("RenewExtends",
		"A holder that works longer than its TTL renews. If a confirmed renewal did nothing, a second caller would get the key.", func(t *Trial) {
			p, q := t.process(), t.process()
			t.inTime("renewed", func(k store.Key, d time.Duration) bool {
				a := store.NewToken()
				before := time.Now()
				fence := t.granted("the claim", p.try(k, a, ttl(d)), 1)
				err := q.renew(k, a, long)
				if time.Since(before) >= d {
					return false
				}
				t.ok("renew", err)
				t.outlast(d)
				t.state("another claim after the first lease's end", q.try(k, store.NewToken()), store.Held)
				t.ok("renew again", p.renew(k, a, long))
				t.keeps("the holder, asking again", p.try(k, a), fence)
				t.ok("release", p.release(k, a))
				return true
			})
		}),
	property("RenewSetsTheEnd",
		"A renewed lease lasts TTL from the renewal, even if that is shorter than before: a client that shortens its lease wants the key to be free soon if it dies.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a), 1)
			before := time.Now()
			t.ok("renew", p.renew(k, a, t.short()))
			t.ends("the lease", before, time.Now(), t.short(), func() bool {
				return p.try(k, store.NewToken()).State == store.Granted
			})
		}),
	property("RenewAnswersEachAlone",
		"One call renews all leases of a process. A holder that gets the answer for another lease would work without its own.", func(t *Trial) {
			p := t.process()
			mine, others, free, dead, mine2 := key("mine"), key("others"), key("free"), key("dead"), key("mine2")
			a, b := store.NewToken(), store.NewToken()
			t.granted("a dying lease", p.try(dead, a, ttl(t.short())), 1)
			t.outlast(t.short())
			t.granted("mine", p.try(mine, a), 1)
			t.granted("mine2", p.try(mine2, a), 1)
			t.granted("the other's", p.try(others, b), 1)
			errs := p.renewals(
				store.Renewal{Key: mine, Token: a, TTL: long},
				store.Renewal{Key: others, Token: a, TTL: long},
				store.Renewal{Key: free, Token: a, TTL: long},
				store.Renewal{Key: mine, Token: a, TTL: 0},
				store.Renewal{Key: mine, Token: a, TTL: long, Progress: make([]byte, store.MaxProgress+1)},
				store.Renewal{Key: key(""), Token: a, TTL: long},
				store.Renewal{Key: dead, Token: a, TTL: long},
				store.Renewal{Key: mine2, Token: a, TTL: long},
			)
			t.ok("renewing one's own", errs[0])
			t.lost("renewing another's", errs[1])
			t.lost("renewing a key without a holder", errs[2])
			t.alone("renewing for TTL 0", errs[3])
			t.alone("renewing with too much progress", errs[4])
			t.alone("renewing the empty key", errs[5])
			t.lost("renewing what has expired", errs[6])
			t.ok("renewing one's other own", errs[7])
			t.ok("the other's lease is unharmed", p.renew(others, b, long))
		}),
}

// ends polls what began between before and after, and was to last d, and fails
// the trial when it ends too early or too late. A slow machine causes neither: early
// is counted from before the first call, and late until a claim is sent.
func (t *Trial) ends(what string, before, after time.Time, d time.Duration, over func() bool) {
	t.Helper()
	for {
		asked := time.Now()
		if over() {
			if lasted := time.Since(before); lasted < d-tick {
				t.Fatalf("%s was over after %v, it was to last %v", what, lasted, d)
			}
			return
		}
		if lasted := asked.Sub(after); lasted > d+t.h.Late {
			t.Fatalf("%s was not over after %v, it was to last %v", what, lasted, d)
		}
		time.Sleep(t.h.Short / 20)
	}
}

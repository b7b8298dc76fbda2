package storetest

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
)

var recordProperties = []Property{
	property("RecordAnswers",
		"A finished caller's record answers all later callers with the same request, in any process, so the work does not run again.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a, answerable), 1)
			before := time.Now()
			t.ok("keep", p.keep(k, a, "answer"))
			for _, p := range []*process{p, q} {
				t.done("try", p.try(k, store.NewToken(), answerable), "answer")
				t.done("queue", p.queue(k, store.NewToken(), answerable), "answer")
				t.done("look", p.look(k, answerable), "answer")
				t.done("the writer, asking again", p.try(k, a, answerable), "answer")
			}
			r := q.look(k, answerable).Record
			if most := time.Since(before) + tick; r.Age > most || r.Left > long+t.h.Unsure || r.Left < long-most-t.h.Unsure {
				t.Fatalf("the record, kept for %v at most %v ago, has the age %v and %v left", long, most, r.Age, r.Left)
			}
			t.lost("renew by the writer", p.renew(k, a, long))
		}),
	property("RecordAndLeaseEndInOneStep",
		"If the lease ended a moment before the record is there, a duplicate that asks in that moment runs the work a second time.", func(t *Trial) {
			p, q := t.process(), t.process()
			for i := range 20 {
				k, a := key("k"+itoa(i)), store.NewToken()
				t.granted("the claim", p.try(k, a, answerable), 1)
				stop := make(chan struct{})
				var running sync.WaitGroup
				running.Go(func() {
					for {
						if d := q.try(k, store.NewToken(), answerable); d.State != store.Held && d.State != store.Done {
							t.Errorf("a duplicate that asked around the settlement: %s, want Held or Done", stateName(d.State))
							return
						}
						select {
						case <-stop:
							return
						case <-time.After(100 * time.Microsecond):
						}
					}
				})
				err := p.keep(k, a, "answer")
				d := p.try(k, store.NewToken(), answerable)
				close(stop)
				running.Wait()
				t.ok("keep", err)
				t.done("a duplicate that asked at once", d, "answer")
			}
		}).heavy(),
	property("RecordIsReadWhole",
		"A stored answer is replayed byte for byte, whatever it contains. Half an answer is worse than none.", func(t *Trial) {
			p, q := t.process(), t.process()
			for _, size := range []int{0, 1, 255, 65535, 64 << 10, 1 << 20} {
				k, a := key("size "+itoa(size)), store.NewToken()
				data := randomBytes(size)
				t.granted("the claim", p.try(k, a), 1)
				t.ok("keep", p.keep(k, a, data))
				t.done("the record of "+itoa(size)+" bytes", q.look(k, answerable), data)
			}
		}),
	property("KeepTwice",
		"A settlement whose reply was lost is sent again. The holder must not get ErrLost for work that it has finished.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a), 1)
			t.ok("keep", p.keep(k, a, "answer"))
			t.ok("keep again", p.keep(k, a, "answer"))
			t.ok("keep again, from another process", q.keep(k, a, "answer"))
			t.granted("a lock, ignoring the record", q.try(k, store.NewToken()), 1)
			t.ok("keep again, while the record is still kept", p.keep(k, a, "answer"))
			t.done("a reader", p.look(k, answerable), "answer")
		}),
	property("RetentionEnds",
		"A record answers until its retention ends. If it ends earlier, work is repeated. If it ends later, keys cannot be reused and the backend fills up.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a, asked("this")), 1)
			before := time.Now()
			t.ok("keep", p.keepFor(k, a, "answer", t.short()))
			t.ends("the record", before, time.Now(), t.short(), func() bool {
				d := q.try(k, store.NewToken(), answerable)
				if d.State == store.Done {
					if d.Record.Left > t.short()+t.h.Unsure {
						t.Fatalf("the record is kept for %v more, the claim asked for %v", d.Record.Left, t.short())
					}
					return false
				}
				t.granted("the next", d, 1)
				return true
			})
		}),
	property("MaxAgeIsHonoured",
		"A caller that accepts answers up to an age gets no older one, and its own answer replaces the old one.", func(t *Trial) {
			p := t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.granted("the claim", p.try(k, a), 1)
			t.ok("keep", p.keep(k, a, "old"))
			t.outlast(t.short())
			t.done("a caller that accepts it", p.try(k, store.NewToken(), maxAge(long)), "old")
			t.granted("a caller that wants a younger one", p.try(k, b, maxAge(t.short()/2)), 1)
			before := time.Now()
			t.ok("its record", p.keep(k, b, "new"))
			d := p.try(k, store.NewToken(), answerable)
			t.done("the next", d, "new")
			if most := time.Since(before) + tick; d.Record.Age > most {
				t.Fatalf("the new record's age is %v, and it was kept at most %v ago", d.Record.Age, most)
			}
		}),
	property("LocksIgnoreRecords",
		"A lock and a record may exist under one key. The lock's holder neither sees nor changes the record, and callers that accept the record do not wait for the lock.", func(t *Trial) {
			p := t.process()
			k, a := key("k"), store.NewToken()
			t.granted("the claim", p.try(k, a, asked("this")), 1)
			t.ok("keep", p.keep(k, a, "answer"))
			for _, end := range []func(store.Key, store.Token) error{p.release, p.abandon, p.release} {
				b := store.NewToken()
				t.state("a lock that asks something else", p.try(k, b, asked("that")), store.Granted)
				t.done("a reader while the lock is held", p.try(k, store.NewToken(), answerable), "answer")
				t.ok("the lock's end", end(k, b))
				t.done("a reader after the lock's end", p.try(k, store.NewToken(), answerable), "answer")
			}
		}),
	property("NoCallerDataIsKept",
		"The client reuses its buffers. A store that keeps a pointer into them replays the answer of another call.", func(t *Trial) {
			p := t.process()
			k, l, a := key("k"), key("l"), store.NewToken()
			t.granted("the claim", p.try(k, a), 1)
			x := store.Settlement{Key: k, Token: a, Outcome: store.Keep, Data: []byte("answer"), Retention: long}
			t.ok("keep", p.settlements(x)[0])
			t.granted("the claim of the other", p.try(l, a), 1)
			r := store.Renewal{Key: l, Token: a, TTL: long, Progress: []byte("step 7")}
			t.ok("renew", p.renewals(r)[0])
			copy(x.Data, "XXXXXX")
			copy(r.Progress, "XXXXXX")
			t.done("a reader", p.look(k, answerable), "answer")
			t.ok("abandon", p.abandon(l, a))
			t.handed("the successor", p.try(l, store.NewToken()), 2, "step 7")
		}),
	property("StateOutlivesRestart",
		"A restart of the backend must not make a second run possible: leases, places, records, abandoned leases and unknown outcomes are still there.", func(t *Trial) {
			p := t.process()
			a := store.NewToken()
			t.granted("a lease", p.try(key("held"), a), 1)
			t.granted("a claim", p.try(key("done"), a, asked("this")), 1)
			t.ok("its record", p.keep(key("done"), a, "answer"))
			t.granted("another claim", p.try(key("abandoned"), a), 1)
			t.ok("its end", p.abandon(key("abandoned"), a))
			t.granted("a third claim", p.try(key("unknown"), a, atMostOnce), 1)
			t.ok("its end", p.abandon(key("unknown"), a))
			t.waits("a reserved place", p.reserve(key("place"), a), 0)
			p = t.restart()
			t.nowhere("another caller, behind the place", p.try(key("place"), store.NewToken()))
			t.state("the held key", p.try(key("held"), store.NewToken()), store.Held)
			t.ok("renew", p.renew(key("held"), a, long))
			t.done("the record", p.look(key("done"), answerable), "answer")
			t.state("the record, asked for something else", p.look(key("done"), answerable, asked("that")), store.Mismatch)
			t.granted("the abandoned key", p.try(key("abandoned"), store.NewToken()), 2)
			t.state("the unknown key", p.try(key("unknown"), store.NewToken()), store.Unknown)
		}).needs(Restart),
}

// randomBytes returns n bytes of everything.
func randomBytes(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return string(b)
}

var fingerprintProperties = []Property{
	property("MismatchWhileRunning",
		"A key that is reused for something else while its first use runs is a caller's mistake. To wait would only lead to the wrong answer.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a := key("k"), store.NewToken()
			fence := t.granted("the first", p.try(k, a, answerable, asked("this")), 1)
			for _, mode := range []store.Mode{store.Try, store.Queue, store.Look} {
				c := lock(k, store.NewToken(), answerable, asked("that"))
				c.Mode = mode
				t.state("another request", q.claim(c), store.Mismatch)
				c.Fingerprint = printOf("this")
				t.state("the same request", q.claim(c), store.Held)
				if mode == store.Queue {
					t.ok("it gives up", q.release(k, c.Token))
				}
			}
			t.keeps("the first, asking again", p.try(k, a, answerable, asked("this")), fence)
			t.ok("the first's renewal", p.renew(k, a, long))
			t.ok("the first's record", p.keep(k, a, "answer"))
			t.done("the same request", q.try(k, store.NewToken(), answerable, asked("this")), "answer")
		}),
	property("MismatchAfterAbandonment",
		"Work that was started under a key and abandoned may have taken effect. Only the same request may continue it.", func(t *Trial) {
			p := t.process()
			for name, end := range map[string]func(store.Key, store.Token){
				"settled so": func(k store.Key, a store.Token) { t.ok("abandon", p.abandon(k, a)) },
				"expired": func(k store.Key, a store.Token) {
					t.ok("the last renewal", p.renew(k, a, t.short()))
					t.outlast(t.short())
				},
			} {
				k, a := key(name), store.NewToken()
				t.granted("the first", p.try(k, a, answerable, asked("this")), 1)
				end(k, a)
				t.state("another request", p.try(k, store.NewToken(), answerable, asked("that")), store.Mismatch)
				t.granted("the same request", p.try(k, store.NewToken(), answerable, asked("this")), 2)
			}
			k, a := key("unknown"), store.NewToken()
			t.granted("a caller that must not run twice", p.try(k, a, asked("this"), atMostOnce), 1)
			t.ok("abandon", p.abandon(k, a))
			t.state("another request", p.try(k, store.NewToken(), asked("that")), store.Mismatch)
			t.unknown("the same request", p.try(k, store.NewToken(), asked("this")), a)
		}),
	property("NoFingerprintNeverDiffers",
		"Locks have no fingerprint. A claim without one matches every key, and a key without one matches every claim.", func(t *Trial) {
			p := t.process()
			k, a, b := key("asked"), store.NewToken(), store.NewToken()
			t.granted("a caller that asks something", p.try(k, a, answerable, asked("this")), 1)
			t.state("a caller that asks nothing, while it runs", p.try(k, store.NewToken(), answerable), store.Held)
			t.ok("keep", p.keep(k, a, "answer"))
			t.done("a caller that asks nothing, when it is done", p.try(k, store.NewToken(), answerable), "answer")

			k = key("unasked")
			t.granted("a caller that asks nothing", p.try(k, b, answerable), 1)
			t.state("a caller that asks something, while it runs", p.try(k, store.NewToken(), answerable, asked("this")), store.Held)
			t.ok("keep", p.keep(k, b, "answer"))
			t.done("a caller that asks something, when it is done", p.try(k, store.NewToken(), answerable, asked("this")), "answer")
		}),
}

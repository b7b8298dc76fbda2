package storetest

import (
	"io"
	"time"

	"github.com/dibs-go/dibs/store"
)

var turnProperties = []Property{
	property("WaitersGrantIsALease",
		"A waiter that was served works, renews and settles, perhaps without claiming again. All that must work as with a caller that was granted at once.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			// hold makes b the holder of a key by its turn.
			hold := func(name string, edits ...edit) (k store.Key, b store.Token) {
				k, a, b := key(name), store.NewToken(), store.NewToken()
				edits = append([]edit{asked("this"), answerable}, edits...)
				wakes.ready(k)
				last := t.granted("the holder", p.try(k, a, asked("this")), 1)
				t.waits("the waiter", q.queue(k, b, edits...), 0)
				t.ok("release", p.release(k, a))
				wakes.turn("the waiter", k, b, last, 1, edits...)
				return k, b
			}

			k, b := hold("release")
			t.state("another that reuses the key", p.try(k, store.NewToken(), asked("that"), answerable), store.Mismatch)
			t.ok("its release", q.release(k, b))
			t.lost("its second release", q.release(k, b))
			t.granted("the next", p.try(k, store.NewToken()), 1)

			k, b = hold("keep")
			t.ok("its record", q.keep(k, b, "answer"))
			t.ok("its record, sent twice", q.keep(k, b, "answer"))
			t.done("a duplicate", p.try(k, store.NewToken(), asked("this"), answerable), "answer")
			t.state("another that reuses the key", p.try(k, store.NewToken(), asked("that"), answerable), store.Mismatch)

			k, b = hold("undo")
			t.ok("undoing it", q.undo(k, b))
			t.granted("the next", p.try(k, store.NewToken()), 1)

			k, b = hold("abandon")
			t.ok("progress", q.save(k, b, long, "half"))
			t.ok("abandoning it", q.abandon(k, b))
			d := p.try(k, store.NewToken())
			t.handed("the next", d, 2, "half")

			k, b = hold("renew")
			before := time.Now()
			t.ok("its renewal", q.renew(k, b, 2*long))
			t.left("another caller", p.try(k, store.NewToken()), before, 2*long)
			t.ok("its second renewal", q.renew(k, b, t.short()))
			t.outlast(t.short())
			t.granted("the next", p.try(k, store.NewToken()), 2)

			// A pushed grant expires with its TTL, if that is shorter than PushedTTL.
			t.inTime("short", func(k store.Key, d time.Duration) bool {
				a, b := store.NewToken(), store.NewToken()
				edits := []edit{asked("this"), answerable, ttl(d)}
				wakes.ready(k)
				t.granted("the holder", p.try(k, a, asked("this")), 1)
				t.waits("the waiter", q.queue(k, b, edits...), 0)
				before := time.Now()
				t.ok("release", p.release(k, a))
				got := wakes.wait("the waiter", b)
				for got.State == 0 { // it was woken to ask
					if got = q.queue(k, b, edits...); got.State == store.Held {
						got = wakes.wait("the waiter", b)
					}
				}
				if time.Since(before) >= d {
					return false
				}
				t.granted("the waiter", got, 1)
				t.outlast(d)
				t.granted("the next", p.try(k, store.NewToken(), asked("this")), 2)
				return true
			})
		}).needs(Notifier),
	property("PushedGrantExpires",
		"The store does not know whether a waiter has begun with its pushed grant. So that lease lasts PushedTTL, no longer and no shorter, and counts as abandoned if it expires.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, silent, next := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("a caller that will be silent", q.queue(k, silent), 0)
			t.waits("the next", p.queue(k, next), 1)
			before := time.Now()
			t.ok("release", p.release(k, a))
			after := time.Now()
			pushed := wakes.wait("the silent one", silent)
			if pushed.State == 0 { // it was woken, and the key has no holder until it asks
				t.outlast(t.turn)
				d := p.queue(k, next)
				if d.State == store.Granted { // its grant was pushed, and arrived late
					t.granted("the next", d, 2)
					return
				}
				t.state("the next", d, store.Held)
				t.granted("the caller that was silent", q.queue(k, silent), 1)
				return
			}
			if t.granted("the silent one", pushed, 1); pushed.Fence <= last {
				t.Fatalf("the silent caller was pushed the fence %d, after %d", pushed.Fence, last)
			}
			var taken uint64
			t.ends("the pushed grant", before, after, t.turn, func() bool {
				d := p.queue(k, next)
				if d.State == store.Held {
					return false
				}
				taken = t.granted("the next", d, 2)
				return true
			})
			if taken <= pushed.Fence {
				t.Fatalf("the next has the fence %d, not above the %d that was pushed before", taken, pushed.Fence)
			}
			t.lost("renewing what has expired", q.renew(k, silent, long))
			t.lost("a record of what has expired", q.keep(k, silent, "late"))
			// If the push arrived late, the fence shows that it is old.
			if fence := t.waits("the silent one, joining anew", q.queue(k, silent), 0); fence < taken {
				t.Fatalf("answered with the highest fence %d, there was %d", fence, taken)
			}
			t.ok("the next one's release", p.release(k, next))
			wakes.wait("the caller that was silent", silent)
		}).needs(Notifier).pushedEnds(),
	property("AtMostOnceIsNotPushed",
		"A pushed grant that is lost expires and counts as abandoned. A claim with AtMostOnce would leave an unknown outcome although nothing ran. So it is woken to ask, at a reserved place, too.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			for _, name := range []string{"waiting", "from a place"} {
				k, a, b, job := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				edits := []edit{atMostOnce}
				wakes.ready(k)
				t.granted("the holder", p.try(k, a), 1)
				if name != "waiting" {
					edits = append(edits, from(job))
					t.waits("reserving", p.reserve(k, job), 0)
				}
				t.waits("a caller that must not run twice", q.queue(k, b, edits...), 0)
				t.ok("release", p.release(k, a))
				wakes.woken("the caller that must not run twice", b)
				t.outlast(t.turn)
				t.granted("the caller that must not run twice", q.queue(k, b, edits...), 1)
				t.ok("its release", q.release(k, b))
			}
		}).needs(Notifier).pushedEnds(),
	property("NextHolderLearnsOfTheAbandoned",
		"The holder after a dead one must know how often the work was begun and what was saved. A pushed grant does not carry that, so the waiter is woken to ask.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, b, c := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			t.granted("the holder", p.try(k, a), 1)
			t.ok("progress", p.save(k, a, long, "half"))
			t.waits("the next holder", q.queue(k, b), 0)
			t.waits("the one behind", q.queue(k, c), 1)
			t.ok("abandon", p.abandon(k, a))
			wakes.woken("the next holder", b)
			d := q.queue(k, b)
			t.handed("the next holder", d, 2, "half")
			t.ok("the next holder's release", q.release(k, b))
			wakes.turn("the one behind", k, c, d.Fence, 1)
		}).needs(Notifier),
	property("MismatchIsNotPushed",
		"Two waiters for one of several permits may have fingerprints that differ. Neither may be granted beside the other, so the second one is woken to ask.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, b, this, that := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			last := max(t.granted("a holder", p.try(k, a, permits(2)), 1), t.granted("another", p.try(k, b, permits(2)), 1))
			t.waits("a caller that does this", q.queue(k, this, permits(2), asked("this")), 0)
			t.waits("a caller that does that", q.queue(k, that, permits(2), asked("that")), 1)
			t.ok("release", p.release(k, a))
			wakes.turn("the caller that does this", k, this, last, 1, permits(2), asked("this"))
			t.ok("its renewal", q.renew(k, this, long))
			t.ok("release", p.release(k, b))
			wakes.woken("the caller that does that", that)
			t.state("the caller that does that", q.queue(k, that, permits(2), asked("that")), store.Mismatch)
		}).needs(Notifier),
	property("HeldAnswersHaveTheFence",
		"A waiter must recognise a pushed grant that arrives late: its fence is not above that of the last answer, even after the data was lost. The fence of a later grant is above it.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, b, c, job := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			// all asks in every way and returns the highest fence that was answered.
			all := func(when string, waiter store.Token) uint64 {
				t.Helper()
				highest := uint64(0)
				for i, d := range []store.Answer{
					q.queue(k, waiter), p.reserve(k, job), q.try(k, store.NewToken(), from(job)),
					p.try(k, store.NewToken()), p.look(k),
				} {
					how := []string{"a waiter", "a reserved place", "a claim from it", "a try", "a look"}[i]
					t.state(how+", "+when, d, store.Held)
					if d.Fence < last {
						t.Fatalf("%s, %s: answered with the highest fence %d, there was %d", how, when, d.Fence, last)
					}
					highest = max(highest, d.Fence)
				}
				return highest
			}
			if first := t.waits("the first waiter", q.queue(k, b), 0); first == 0 {
				t.ok("release", p.release(k, a))
				if _, pushed := wakes.turn("the first waiter", k, b, last, 1); pushed {
					t.Fatal("a grant was pushed, and held answers have no fence")
				}
				return
			}
			highest := all("while it is held", c)
			t.ok("release", p.release(k, a))
			last, _ = wakes.turn("the first waiter", k, b, highest, 1)
			highest = all("after a grant was pushed", c)
			t.ok("the first waiter's release", q.release(k, b))
			last, _ = wakes.turn("the second waiter", k, c, highest, 1)
			wakes.stop()
			t.outlast(0) // so that the clock has passed the fences before the loss
			p = t.wipe()
			t.waits("reserving", p.reserve(k, store.NewToken()), 0)
			if fence := t.waits("a waiter behind the place", p.queue(k, b), 1); fence < last {
				t.Fatalf("answered with the highest fence %d, there was %d before the loss", fence, last)
			}
		}).needs(Notifier, Wipe),
	property("AbsentWaiterHasItsPlaceTTL",
		"A waiter that does not ask keeps the others from the key for its PlaceTTL at most. It held nothing, so nothing was abandoned, and the next holder gets what was abandoned before.", func(t *Trial) {
			p := t.process()
			k, a, absent, next := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.ok("progress", p.save(k, a, long, "half"))
			t.waits("a caller that will not come", p.queue(k, absent), 0)
			t.waits("the next", p.queue(k, next), 1)
			t.waits("the absent one, asking for a short place", p.queue(k, absent, placeTTL(t.short())), 0)
			t.ok("abandon", p.abandon(k, a))
			t.outlast(t.short())
			t.handed("the next", p.queue(k, next), 2, "half")
			t.lost("settling the absent one's place", p.release(k, absent))
			t.waits("the absent one, joining anew", p.queue(k, absent), 0)
		}),
	property("MismatchInFront",
		"A waiter whose fingerprint differs from that of the abandoned lease must not continue that work. It gets Mismatch when it asks, and then the next waiter is served.", func(t *Trial) {
			p := t.process()
			k, a, other, next := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("a caller that asks for something else", p.queue(k, other, asked("that")), 0)
			t.waits("the next", p.queue(k, next, asked("this")), 1)
			t.ok("release", p.release(k, a))
			t.granted("the other, asking for what the next does", p.queue(k, other, asked("this")), 1)
			t.ok("abandon", p.abandon(k, other))
			t.granted("the next", p.queue(k, next, asked("this")), 2)
			t.waits("the other, anew", p.queue(k, other), 0)
			t.state("the other, asking for something else", p.queue(k, other, asked("that")), store.Mismatch)
			t.lost("settling its place", p.release(k, other))
		}),
}

// left fails the trial unless the answer is Held, and the first lease ends d after a
// moment that came since.
func (t *Trial) left(what string, a store.Answer, since time.Time, d time.Duration) {
	t.Helper()
	t.state(what, a, store.Held)
	// Stores may keep times in milliseconds.
	least := d - time.Since(since) - tick - t.h.Unsure
	if a.Left <= 0 || a.Left > d+time.Microsecond+t.h.Unsure || a.Left < least {
		t.Fatalf("%s: Left is %v, want between %v and %v", what, a.Left, least, d)
	}
}

// relay opens a store whose waiters may ask elsewhere, as those of a server do, with a listener
// that is woken.
func (t *Trial) relay(k store.Key) (*process, *listener) {
	t.Helper()
	p := t.process()
	if r, ok := p.store.(store.Relayer); ok {
		r.Relay()
	}
	l := p.listen()
	l.ready(k)
	return p, l
}

// end ends a process, as far as the backend can see.
func (l *listener) end() {
	l.t.Helper()
	l.stop()
	if c, ok := l.p.store.(io.Closer); ok {
		l.t.ok("closing a store", c.Close())
	}
}

var relayProperties = []Property{
	property("RelayedWaiterIsNotOvertaken",
		"A client waits at a server, and the server ends. The key becomes free before the client has asked another server. A restart of a server must not cost its clients their turns.", func(t *Trial) {
			for name, end := range map[string]func(*process, store.Key, store.Token) error{
				"release": (*process).release, "keep": func(p *process, k store.Key, a store.Token) error { return p.keep(k, a, "answer") }, "undo": (*process).undo,
			} {
				p := t.process()
				wakes := p.listen()
				k, a, client, next := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				wakes.ready(k)
				server, ends := t.relay(k)
				other, _ := t.relay(k)
				last := t.granted("the holder", p.try(k, a), 1)
				t.waits("a client of a server", server.queue(k, client), 0)
				last = max(last, t.waits("the next", p.queue(k, next), 1))
				ends.end()
				t.ok(name, end(p, k, a))
				t.state("the next", p.queue(k, next), store.Held)
				fence := t.granted("the client, at another server", other.queue(k, client), 1)
				if fence <= last {
					t.Fatalf("the client has the fence %d, after %d", fence, last)
				}
				t.ok("its release", other.release(k, client))
				wakes.turn("the next", k, next, fence, 1)
				t.lost("the client's second release", other.release(k, client))
				t.ok("the next one's release", p.release(k, next))
				t.state("a look after that", p.look(k), store.Free)
			}
		}).needs(Notifier, Processes),
	property("RelayedWaiterKeepsItsNumber",
		"A server takes longer to start again than a grant waits for its client. Others are served meanwhile, and the client has the next turn, because its place stands for its PlaceTTL.", func(t *Trial) {
			for _, name := range []string{"the client comes back", "the client gives up"} {
				p := t.process()
				wakes := p.listen()
				k, a, client, next, late := key(name), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
				wakes.ready(k)
				server, ends := t.relay(k)
				other, _ := t.relay(k)
				t.granted("the holder", p.try(k, a), 1)
				t.waits("a client of a server", server.queue(k, client), 0)
				ends.end()
				t.ok("release", p.release(k, a))
				t.outlast(t.turn)
				if p.look(k).State == store.Held {
					// The store has woken the client, and waits for it.
					t.granted("the client", other.queue(k, client), 1)
					continue
				}
				if e := p.list(store.Query{Places: true})[k]; e.Waiters != 0 || len(e.Places) != 0 {
					t.Fatalf("the list has %d waiters and %d places", e.Waiters, len(e.Places))
				}
				t.granted("the next", p.try(k, next), 2)
				t.waits("a late one", p.queue(k, late), 0)
				ahead, behind := 0, 1
				if name == "the client gives up" {
					t.lost("its settlement, because it had the key", other.undo(k, client))
					ahead, behind = 1, 0
				}
				t.waits("the client, at another server", other.queue(k, client), ahead)
				t.waits("a late one, asking again", p.queue(k, late), behind)
				if ahead == 0 {
					t.ok("the next one's release", p.release(k, next))
					t.state("the client, asking again", other.queue(k, client), store.Granted)
				}
			}
		}).needs(Notifier, Processes, Inspector).pushedEnds(),
	property("RelayedWaiterKeepsNobodyAway",
		"A server crashes together with the hosts of all its clients. If the store skips dead waiters, it must not wait for these one after the other.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes, ends := p.listen(), q.listen()
			k, a, next := key("skips"), store.NewToken(), store.NewToken()
			wakes.ready(k)
			ends.ready(k)
			t.granted("the holder", p.try(k, a), 1)
			t.waits("a waiter that dies", q.queue(k, store.NewToken()), 0)
			t.waits("the next", p.queue(k, next), 1)
			ends.end()
			t.ok("release", p.release(k, a))
			if _, granted := wakes.within(next, t.turn/2); !granted {
				return // the store does not skip
			}

			k, a, next = key("k"), store.NewToken(), store.NewToken()
			wakes.ready(k)
			server, ends := t.relay(k)
			t.granted("the holder", p.try(k, a), 1)
			t.waits("one that may not run twice", server.queue(k, store.NewToken(), atMostOnce), 0)
			for n, token := range tokens(3) {
				t.waits("a client of a server", server.queue(k, token), n+1)
			}
			t.waits("the next", p.queue(k, next), 4)
			ends.end()
			t.ok("release", p.release(k, a))
			t.outlast(t.turn)
			t.poll("the next is granted", func() bool { return p.queue(k, next).State == store.Granted })
		}).needs(Notifier, Processes).pushedEnds(),
}

package storetest

import (
	"io"

	"github.com/dibs-go/dibs/store"
)

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

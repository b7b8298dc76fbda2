package storetest

import "github.com/dibs-go/dibs/store"

var weightProperties = []Property{
	property("WeightsAreSummed",
		"A writer takes all permits and a reader one, so readers share the key and a writer is alone. If weights could add up to more than the permits, a writer would run among readers.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, readers, writer := key("k"), tokens(2), store.NewToken()
			for _, r := range readers {
				t.granted("a reader", p.try(k, r, permits(5)), 1)
			}
			t.state("a writer among readers", q.try(k, writer, permits(5), weight(5)), store.Held)
			t.state("a caller that is too heavy by one", q.try(k, store.NewToken(), permits(5), weight(4)), store.Held)
			t.state("a caller that fits, looking", q.look(k, permits(5), weight(3)), store.Free)
			heavy := store.NewToken()
			t.granted("a caller that fits", q.try(k, heavy, permits(5), weight(3)), 1)
			t.state("a reader, when all permits are taken", p.try(k, store.NewToken(), permits(5)), store.Held)
			t.ok("a reader's end", p.release(k, readers[0]))
			t.state("a weight of 2, when one is left", p.try(k, store.NewToken(), permits(5), weight(2)), store.Held)
			t.ok("the heavy one's end", q.abandon(k, heavy))
			t.ok("the other reader's end", p.release(k, readers[1]))
			t.granted("the writer", q.try(k, writer, permits(5), weight(5)), 1)
			t.state("a reader beside the writer", p.try(k, store.NewToken(), permits(5)), store.Held)
			t.state("a reader beside the writer, looking", p.look(k, permits(5)), store.Held)
		}),
	property("HeavyIsNotStarved",
		"A writer that waits for readers must not wait for those that came after it, because callers are served in order. The readers behind it are served only after it, and then all at once.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, readers, writer, late := key("k"), tokens(2), store.NewToken(), tokens(3)
			wakes.ready(k)
			var last uint64
			for _, r := range readers {
				last = t.granted("a reader", p.try(k, r, permits(4)), 1)
			}
			t.waits("the writer", q.queue(k, writer, permits(4), weight(4)), 0)
			for i, r := range late {
				t.waits("late reader "+itoa(i), q.queue(k, r, permits(4)), i+1)
			}
			t.nowhere("a reader that tries", p.try(k, store.NewToken(), permits(4)))
			t.ok("a reader's end", p.release(k, readers[0]))
			t.waits("the writer", q.queue(k, writer, permits(4), weight(4)), 0)
			t.waits("a late reader, asking", q.queue(k, late[0], permits(4)), 1)
			t.ok("the other reader's end", p.release(k, readers[1]))
			last, _ = wakes.turn("the writer", k, writer, last, 1, permits(4), weight(4))
			for _, r := range late {
				if wakes.pushed(r) {
					t.Fatal("a late reader was pushed a grant before the writer's end")
				}
				wakes.forget(r)
			}
			t.ok("the writer's end", q.release(k, writer))
			for i, r := range late {
				last, _ = wakes.turn("late reader "+itoa(i), k, r, last, 1, permits(4))
			}
		}).needs(Notifier),
}

package storetest

import "github.com/dibs-go/dibs"

var weightProperties = []Property{
	{
		Name: "WeightsAreSummed",
		Why:  "A writer takes all permits and a reader one, so that readers share the key and a writer is alone. Weights that sum to more than the permits let a writer in among readers.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, readers, writer := key("k"), tokens(2), dibs.NewToken()
			for _, r := range readers {
				t.granted("a reader", p.try(k, r, permits(5)), 1)
			}
			t.state("a writer among readers", q.try(k, writer, permits(5), weight(5)), dibs.Held)
			t.state("one that is too heavy by one", q.try(k, dibs.NewToken(), permits(5), weight(4)), dibs.Held)
			t.state("one that fits, looking", q.look(k, permits(5), weight(3)), dibs.Free)
			heavy := dibs.NewToken()
			t.granted("one that fits", q.try(k, heavy, permits(5), weight(3)), 1)
			t.state("a reader, when all permits are taken", p.try(k, dibs.NewToken(), permits(5)), dibs.Held)
			t.ok("a reader's end", p.release(k, readers[0]))
			t.state("a weight of 2, when one is left", p.try(k, dibs.NewToken(), permits(5), weight(2)), dibs.Held)
			t.ok("the heavy one's end", q.abandon(k, heavy))
			t.ok("the other reader's end", p.release(k, readers[1]))
			t.granted("the writer", q.try(k, writer, permits(5), weight(5)), 1)
			t.state("a reader beside the writer", p.try(k, dibs.NewToken(), permits(5)), dibs.Held)
			t.state("a reader beside the writer, looking", p.look(k, permits(5)), dibs.Held)
		},
	},
	{
		Name:  "HeavyIsNotStarved",
		Why:   "A writer that waits for readers to end must not wait for those that came after it: first come, first served, whatever fits. The readers behind it have no turn until it has had its own, and then all of them have.",
		Needs: []Feature{Notifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			heard := q.listen()
			k, readers, writer, late := key("k"), tokens(2), dibs.NewToken(), tokens(3)
			heard.ready(k)
			var last uint64
			for _, r := range readers {
				last = t.granted("a reader", p.try(k, r, permits(4)), 1)
			}
			t.waits("the writer", q.queue(k, writer, permits(4), weight(4)), 0)
			for i, r := range late {
				t.waits("late reader "+itoa(i), q.queue(k, r, permits(4)), i+1)
			}
			t.nowhere("a reader that tries", p.try(k, dibs.NewToken(), permits(4)))
			t.ok("a reader's end", p.release(k, readers[0]))
			t.waits("the writer", q.queue(k, writer, permits(4), weight(4)), 0)
			t.waits("a late reader, asking", q.queue(k, late[0], permits(4)), 1)
			t.ok("the other reader's end", p.release(k, readers[1]))
			last, _ = heard.turn("the writer", k, writer, last, 1, permits(4), weight(4))
			for _, r := range late {
				if heard.told(r) {
					t.Fatal("a late reader was told a grant before the writer's end")
				}
				heard.forget(r)
			}
			t.ok("the writer's end", q.release(k, writer))
			for i, r := range late {
				last, _ = heard.turn("late reader "+itoa(i), k, r, last, 1, permits(4))
			}
		},
	},
}

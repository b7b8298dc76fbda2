package storetest

import "github.com/dibs-go/dibs/store"

var staleProperties = []Property{
	property("FormerHolderChangesNothing",
		"A caller that lost its lease and does not know it still renews and settles. It must get ErrLost, and the next holder must not be affected.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.granted("the first holder", p.try(k, a), 1)
			t.ok("its release", p.release(k, a))
			fence := t.granted("the second holder", q.try(k, b), 1)
			for range 2 {
				t.lost("renew by the first", p.renew(k, a, long))
				t.lost("release by the first", p.release(k, a))
				t.lost("keep by the first", p.keep(k, a, "stale"))
				t.lost("abandon by the first", p.abandon(k, a))
			}
			t.state("a third", p.try(k, store.NewToken(), answerable), store.Held)
			t.keeps("the second, asking again", q.try(k, b), fence)
			t.ok("release by the second", q.release(k, b))
			t.granted("a third, after the release", p.try(k, store.NewToken(), answerable), 1)
		}),
	property("LoserFreesNothing",
		"A caller that did not get the key cleans up after itself. If it deleted the key, the holder would work without its lock.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, winner, loser, waiter := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			t.granted("the winner", p.try(k, winner), 1)
			t.state("the loser", q.try(k, loser), store.Held)
			t.lost("release by the loser", q.release(k, loser))
			t.lost("release by another caller", q.release(k, store.NewToken()))
			t.state("a claim after the loser's release", q.try(k, store.NewToken()), store.Held)
			t.state("the waiter", q.queue(k, waiter), store.Held)
			t.ok("the waiter gives up", q.release(k, waiter))
			t.state("a claim after the waiter gave up", q.try(k, store.NewToken()), store.Held)
			t.ok("renew by the winner", p.renew(k, winner, long))
		}),
	property("WaiterWritesNoRecord",
		"Only the holder's answer is the answer. A token that only waits has run nothing, or has lost the lease under which it ran.", func(t *Trial) {
			p := t.process()
			k, a, b := key("k"), store.NewToken(), store.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.state("the waiter", p.queue(k, b), store.Held)
			t.lost("keep by the waiter", p.keep(k, b, "mine"))
			t.state("a reader", p.look(k, answerable), store.Held)
			t.ok("renew by the holder", p.renew(k, a, long))
			t.ok("release by the holder", p.release(k, a))
			t.granted("the waiter, which still has its place", p.try(k, b), 1)
		}),
}

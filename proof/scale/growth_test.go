package main

import (
	"fmt"
	"testing"

	"github.com/dibs-go/dibs"
)

// longQueue checks that what a call costs does not grow with the queue that it is about.
func (b *backend) longQueue(t *testing.T) {
	s := b.open(t, never)
	lengths, short := []int{80, 4000}, map[string]counts{}
	for _, length := range lengths {
		key := dibs.Key{Name: keyName("long", length)}
		holder := newBatch("", 1)
		holder.claims[0].Key, holder.settles[0].Key = key, key
		holder.claim(t, s, dibs.Granted)
		var line []*batch
		for from := 0; from < length; from += 200 {
			x := newBatch("", min(200, length-from))
			x.wait(key, dibs.Queue)
			x.claim(t, s, dibs.Held)
			line = append(line, x)
		}
		one := func(x *batch, i int) *batch {
			y := newBatch("", 1)
			y.claims[0], y.settles[0] = x.claims[i], x.settles[i]
			return y
		}
		first, last := one(line[0], 0), one(line[len(line)-1], len(line[len(line)-1].claims)-1)
		const times = 8
		count := func(what string, f func()) {
			got := b.measure(t, f)
			t.Logf("queue %5d: %-10s %7.1f calls %9.1f in %9.1f out %9.1f log %9.1f work", length, what,
				got.Calls/times, got.In/times, got.Out/times, got.Log/times, got.work/times)
			if length == lengths[0] {
				short[what] = got
				return
			}
			was := short[what]
			for name, grown := range map[string][3]float64{ // some, for what comes by chance
				"calls": {was.Calls, got.Calls, 0.5}, "bytes in": {was.In, got.In, 100}, "bytes out": {was.Out, got.Out, 100}, "work": {was.work, got.work, 10},
			} {
				if grown[1] > 2*grown[0]+times*(grown[2]+b.alongside[name]) {
					b.miss("%s: %.1f %s in a queue of %d, and %.1f in one of %d", what, grown[0]/times, name, lengths[0], grown[1]/times, length)
				}
			}
		}
		count("ask, first", func() {
			for range times {
				first.claim(t, s, dibs.Held)
			}
		})
		count("ask, last", func() {
			for range times {
				last.claim(t, s, dibs.Held)
			}
		})
		count("join", func() {
			for i := range times {
				x := newBatch(fmt.Sprint("j", i), 1)
				x.wait(key, dibs.Queue)
				x.claim(t, s, dibs.Held)
			}
		})
		count("renew", func() {
			for range times {
				holder.renewals[0].Key = key
				holder.renew(t, s)
			}
		})
		count("hand over", func() {
			for i := range times {
				holder.release(t, s)
				holder = one(line[0], i)
				holder.claim(t, s, dibs.Granted)
			}
		})
	}
}

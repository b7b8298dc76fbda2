package memstore

import (
	"math/bits"
	"time"
)

// wheel says when to look at the entries of a shard that nobody may ever ask
// about again: a ring of slots, one for each tick, of which each is a list of
// entries. Putting an entry in and taking it out costs the same whatever their
// number.
//
// An entry waits in the slot of its due, a moment that is never later than
// when the first thing in it runs out, but may be earlier: a renewal does not
// move it, the look does. One whose due is more than a turn of the wheel away
// is met on every turn, and left.
type wheel struct {
	slots [wheelSlots]*entry
	used  [wheelSlots / 64]uint64 // a bit for each slot that is not empty
	count int

	// A pass looks through the slots of the ticks that have come since the last
	// pass, and that one's last tick again, because that was not over. It can
	// be interrupted.
	passing bool
	pass    instant // the time up to which it looks
	tick    int64   // whose slot was opened last
	cursor  *entry  // the next to look at in that slot
	next    instant // nothing is due before
}

const (
	wheelSlots = 256
	wheelTick  = instant(time.Second)
)

// slotOf returns the slot in which what is due in a tick waits.
func slotOf(tick int64) int { return int(tick % wheelSlots) }

func tickOf(t instant) int64 { return int64(t / wheelTick) }

func (w *wheel) init() { w.next = never }

// put makes an entry wait until it is due.
func (w *wheel) put(e *entry, due instant) {
	// What is overdue already goes where the next pass begins.
	slot := slotOf(max(tickOf(due), w.tick))
	e.due, e.slot = due, int16(slot)+1
	e.prior, e.later = nil, w.slots[slot]
	if e.later != nil {
		e.later.prior = e
	}
	w.slots[slot] = e
	w.used[slot/64] |= 1 << (slot % 64)
	w.count++
	w.next = min(w.next, due)
}

// remove takes an entry out of its slot, if it is in one.
func (w *wheel) remove(e *entry) {
	if e.slot == 0 {
		return
	}
	if w.cursor == e {
		w.cursor = e.later
	}
	slot := int(e.slot) - 1
	if e.prior != nil {
		e.prior.later = e.later
	} else if w.slots[slot] = e.later; e.later == nil {
		w.used[slot/64] &^= 1 << (slot % 64)
	}
	if e.later != nil {
		e.later.prior = e.prior
	}
	e.prior, e.later, e.slot = nil, nil, 0
	w.count--
}

// look returns the next entry that is due, still in its slot, or nil when there
// is none or when it has looked at *budget entries. all says that there is none.
func (w *wheel) look(now instant, budget *int) (e *entry, all bool) {
	for {
		if !w.passing {
			if now < w.next {
				return nil, true
			}
			w.passing, w.pass = true, now
			w.tick = max(w.tick-1, tickOf(now)-wheelSlots)
		}
		for last := tickOf(w.pass); w.cursor == nil && w.tick < last; {
			w.tick++
			w.cursor = w.slots[slotOf(w.tick)]
			if w.tick == last {
				// What was left in the slots before has one more turn to go.
				w.next = instant(last+1) * wheelTick
			}
		}
		if w.cursor == nil {
			w.passing = false
			continue
		}
		if *budget <= 0 {
			return nil, false
		}
		*budget--
		e, w.cursor = w.cursor, w.cursor.later
		if e.due <= w.pass {
			return e, false
		}
		w.next = min(w.next, e.due)
	}
}

// turn returns when the next slot that is in use is over, or never.
func (w *wheel) turn(now instant) instant {
	tick := tickOf(now)
	for n := 0; n < wheelSlots; {
		slot := slotOf(tick + int64(n))
		rest := w.used[slot/64] >> (slot % 64)
		if rest != 0 {
			return instant(tick+int64(n+bits.TrailingZeros64(rest))+1) * wheelTick
		}
		n += 64 - slot%64
	}
	if w.count > 0 {
		return now.after(wheelSlots * time.Second)
	}
	return never
}

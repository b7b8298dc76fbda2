package memstore

import (
	"bytes"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// entry is what a shard knows about one key. It is small, because most entries have only a
// record.
type entry struct {
	key    store.Key
	record engine.Record
	data   []byte // of the record; never written to, because answers share it
	life   *life  // nil without leases, places and an abandoned lease
}

// life is what a key has that is under way.
type life struct {
	state    *engine.State
	progress map[int64][]byte // by fence; never written to, because answers share it

	shard *shard
	entry *entry // nil when it has ended
	timer *time.Timer
	armed int64 // when the timer fires; never when it is stopped
}

// begin begins a step on an entry.
func (sh *shard) begin(e *entry, now int64) *engine.State {
	if e.record.Ends != 0 && e.record.Ends <= now {
		sh.dropRecord(e)
	}
	if e.life == nil {
		if e.life = sh.unusedLives.get(); e.life.state == nil {
			e.life.shard, e.life.armed, e.life.state = sh, never, engine.NewState(sh.fence)
		}
		e.life.entry = e
		e.life.state.Reuse(e.record)
	}
	sh.now = now
	e.life.state.At(now)
	return e.life.state
}

// finish ends a step on an entry: it does what the engine has decided, removes what is not in
// use any more, and sets the timers for all else.
func (sh *shard) finish(e *entry, now int64) {
	l := e.life
	steps, wakeUps := l.state.Done()
	for i := range steps {
		sh.do(e, &steps[i])
	}
	for i := range wakeUps {
		sh.woken = append(sh.woken, wakeUps[i].Token)
	}
	e.record = l.state.Record()
	if l.state.Idle() {
		sh.end(e)
	} else if turn := l.state.Turn(); turn != never {
		l.arm(turn, now)
	}
	if e.life == nil && e.record.Ends == 0 {
		sh.remove(e)
		return
	}
	sh.schedule(e)
}

// end ends a life that has nothing under way.
func (sh *shard) end(e *entry) {
	l := e.life
	if e.life, l.entry = nil, nil; l.timer != nil {
		l.timer.Stop() // it may fire all the same, so it is not used again
		return
	}
	sh.unusedLives.put(l)
}

// do does what the engine has decided about data. The bytes of new data are taken already.
func (sh *shard) do(e *entry, s *engine.Step) {
	l := e.life
	switch s.Does {
	case engine.WriteRecord:
		e.data = bytes.Clone(s.Data)
	case engine.EraseRecord:
		sh.store.take(-len(e.data))
		e.data = nil
	case engine.WriteProgress:
		if l.progress == nil {
			l.progress = map[int64][]byte{}
		}
		l.progress[s.Fence] = bytes.Clone(s.Data)
	case engine.DropProgress:
		sh.store.take(-len(l.progress[s.Fence]))
		delete(l.progress, s.Fence)
	case engine.ReadRecord:
		*s.To = e.data
	case engine.ReadProgress:
		*s.To = l.progress[s.Fence]
	case engine.ReadSize:
		*s.Size = len(e.data)
	}
}

// dropRecord deletes the key's record.
func (sh *shard) dropRecord(e *entry) {
	sh.store.take(-len(e.data))
	e.record, e.data = engine.Record{}, nil
	if e.life != nil {
		e.life.state.Drop()
	}
}

// soonest returns a time before which nothing in the entry expires.
func (e *entry) soonest() int64 {
	switch {
	case e.life != nil:
		return e.life.state.Soonest()
	case e.record.Ends != 0:
		return e.record.Ends
	}
	return never
}

// arm makes the timer fire at t or earlier. It is not set back when it could fire later,
// because that would cost more than to fire in vain.
func (l *life) arm(t, now int64) {
	if t >= l.armed || l.shard.store.closed.Load() {
		return
	}
	l.armed = t
	if l.timer == nil {
		l.timer = time.AfterFunc(engine.Duration(t-now), l.fire)
	} else {
		l.timer.Reset(engine.Duration(t - now))
	}
}

// fire notices what has expired.
func (l *life) fire() {
	sh := l.shard
	sh.mu.Lock()
	l.armed = never
	if e := l.entry; e != nil {
		now := sh.store.now()
		sh.begin(e, now).Advance()
		sh.finish(e, now)
	}
	sh.unlock(store.Token{})
}

package casstore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

// Clock is the time of a store, in microseconds. A Register is one.
type Clock interface {
	// Now returns two bounds of the time. What ends is over by least, which is never ahead of the
	// time that any process reads later. What begins lasts from most: no process reads
	// most + d as least before d has passed since Now was called.
	Now(ctx context.Context) (least, most int64, err error)

	// Tick moves the clock, if it is this process's turn, and returns the time as far as the process
	// knows it. The process calls it again after next; 0: it does not.
	Tick(ctx context.Context, next time.Duration) (now int64, err error)
}

// Register is a Clock that is one object of a KV. A process that moves the number in it adds at most
// what has passed, by its monotonic clock, since it received the state that it replaces. That state
// became current before, so the number never runs faster than real time.
//
// A lease that begins must not count from the number alone: it may be about to jump by all the
// time since its state became current. The process knows a moment before that: it sent a request
// that was answered with an older state. The time since then, and an eighth for clocks that
// differ, is added to most.
//
// If that is more than four ticks and two calls, because the process is new or was away, it first
// moves the register itself, because the lease would last too long. If the register says that its
// next move is planned, the process waits for that one: its own would void the time that has been
// counted towards it.
type Register struct {
	kv     KV
	o      RegisterOptions
	stands bool // the process writes nothing, so its time is the number as it was written last

	mu    sync.Mutex
	state registerState
	known string        // the version of state; "": none
	mine  bool          // this process wrote it
	at    time.Duration // when it had been received
	since time.Duration // it became current after that
	asked time.Duration // it was current after that
	most  int64         // the last upper bound that was returned
}

// RegisterOptions are the settings of a Register. Nil and the zero value mean the defaults.
type RegisterOptions struct {
	// Tick is the time between two calls of Tick; default 250 ms.
	Tick time.Duration
	// Monotonic returns the time since some moment; default: the process's monotonic clock. It
	// is for simulations.
	Monotonic func() time.Duration
	// Wall returns a first number for a store without objects, so that fences rise after all
	// objects were lost; default: time.Now. Nothing else depends on it.
	Wall func() time.Time
}

// registerState is the register's object.
type registerState struct {
	Now   int64  `json:"now"`
	Move  int64  `json:"move"` // how often it was moved
	Next  int64  `json:"next"` // in how many microseconds it will be moved again, if all is well
	Nonce string `json:"nonce"`
}

// registerName is the object's name.
const registerName = "clock"

// NewRegister returns the register in a KV.
func NewRegister(kv KV, o *RegisterOptions) *Register {
	r := &Register{kv: kv}
	if o != nil {
		r.o = *o
	}
	if r.o.Tick <= 0 {
		r.o.Tick = defaultTick
	}
	if r.o.Monotonic == nil {
		began := time.Now()
		r.o.Monotonic = func() time.Duration { return time.Since(began) }
	}
	if r.o.Wall == nil {
		r.o.Wall = time.Now
	}
	return r
}

// Now implements Clock. It makes one call if the process has used the clock a moment ago.
func (r *Register) Now(ctx context.Context) (least, most int64, err error) {
	var end time.Duration // of waiting for another process's move
	for moved := false; ; {
		sent := r.o.Monotonic()
		if err := r.read(ctx); err != nil {
			return 0, 0, err
		}
		now := r.o.Monotonic()
		r.mu.Lock()
		s, slack, known := r.state, now-r.since, r.since >= 0
		fresh := known && (moved || slack <= 4*r.o.Tick+2*(now-sent))
		if fresh {
			// Of a lease, more than its TTL would be left if the bound fell when the register moves.
			most = max(r.most, s.Now+(slack+slack/8).Microseconds()+1)
			r.most = most
		}
		r.mu.Unlock()
		switch {
		case r.stands:
			return max(s.Now, 1), max(s.Now, 1), nil
		case fresh:
			return s.Now, most, nil
		}
		planned := time.Duration(s.Next) * time.Microsecond
		if end == 0 {
			end = now + min(planned, r.o.Tick)*5/4
		}
		if now < end {
			if err := backoff.Sleep(ctx, max(planned/8, time.Millisecond)); err != nil {
				return 0, 0, err
			}
			continue
		}
		if err := r.move(ctx, r.o.Tick); err != nil {
			return 0, 0, err
		}
		moved = true // there is no better bound if the engine is slow
	}
}

// Tick implements Clock. The process that moved the register last does it again, because the time
// of a call is lost to any other. Another process does it if that one is late.
func (r *Register) Tick(ctx context.Context, next time.Duration) (now int64, err error) {
	age, mine := r.age()
	moves := mine && (age >= r.o.Tick/2 || next == 0)
	if !moves && next > 0 {
		err = r.read(ctx)
		age, _ = r.age()
		moves = err == nil && age >= r.o.Tick*3/2
	}
	if moves {
		err = r.move(ctx, next)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Now, err
}

// age returns how long the process has had the state, and whether it wrote it.
func (r *Register) age() (age time.Duration, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.o.Monotonic() - r.at, r.mine
}

// read reads the register, and makes it if there is none.
func (r *Register) read(ctx context.Context) error {
	for {
		sent := r.o.Monotonic()
		raw, version, err := r.kv.Get(ctx, registerName)
		received := r.o.Monotonic()
		var s registerState
		switch {
		case err != nil:
			return err
		case version != "":
			if err := json.Unmarshal(raw, &s); err != nil {
				return fmt.Errorf("casstore: the object %q is not a clock: %w", registerName, err)
			}
			if r.learn(s, version, sent, received, false) {
				return nil
			}
		case r.stands:
			return nil
		default:
			s.Now = max(r.o.Wall().UnixMicro(), 1)
			if _, err := r.put(ctx, &s, ""); err != nil && !errors.Is(err, ErrConflict) {
				return err
			}
		}
	}
}

// put writes a state.
func (r *Register) put(ctx context.Context, s *registerState, version string) (string, error) {
	s.Nonce = rand.Text()
	raw, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	return r.kv.Put(ctx, registerName, raw, version)
}

// learn takes a state that was asked for and received then. It returns false if the process knew
// a later state before it asked, because then the objects were lost, or the answer was overtaken.
func (r *Register) learn(s registerState, version string, sent, received time.Duration, mine bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case version == r.known:
		if r.asked = max(r.asked, sent); mine {
			r.mine, r.since = true, max(r.since, sent)
		}
		return true
	case r.known == "":
		r.since = -1
	case s.Move > r.state.Move:
		r.since = r.asked
	case sent < r.at:
		return false
	default: // the objects were lost
		r.since, r.most = -1, 0
	}
	if mine {
		r.since = sent
	}
	r.state, r.known, r.mine, r.at, r.asked = s, version, mine, received, sent
	return true
}

// move adds what has passed since the state was received. If another process was faster, it only
// reads.
func (r *Register) move(ctx context.Context, next time.Duration) error {
	r.mu.Lock()
	s, version, at := r.state, r.known, r.at
	r.mu.Unlock()
	sent := r.o.Monotonic()
	s.Now += max((sent - at).Microseconds(), 0)
	s.Move, s.Next = s.Move+1, next.Microseconds()
	version, err := r.put(ctx, &s, version)
	if errors.Is(err, ErrConflict) {
		return r.read(ctx)
	}
	if err == nil {
		r.learn(s, version, sent, r.o.Monotonic(), true)
	}
	return err
}

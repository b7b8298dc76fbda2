package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// A settlement is how a run's key is settled.
type settlement struct {
	outcome   store.Outcome
	record    []byte        // with store.Keep
	retention time.Duration // with store.Keep
}

// apply settles the lease.
func (m *Middleware) apply(how settlement, lease *dibs.Lease) error {
	limit, stop := m.withStoreLimit(context.Background())
	defer stop()
	switch how.outcome {
	case store.Keep:
		return lease.Complete(limit, how.record, how.retention)
	case store.Abandon:
		return lease.Abandon(limit)
	case store.Undo:
		return lease.Undo(limit)
	}
	return lease.Release()
}

// settlement returns how a run with a whole answer is settled.
func (s *requestState) settlement() settlement {
	c := s.m.parseControl(s.answer.controls)
	if !s.keeps(c) {
		return settlement{outcome: store.Release}
	}
	w := s.answer
	if w.oversize || s.tooLarge {
		return s.tombstone()
	}
	connection := w.header["Connection"]
	a := Answer{
		Status:  w.status,
		Header:  s.m.options.stored(w.header, connection),
		Trailer: s.m.options.stored(w.trailer, connection),
		Body:    w.body,
		trace:   s.m.options.Trace(s.r.Context()),
		asked:   s.asked,
	}
	s.m.options.Redact(s.r.Context(), &a)
	message := a.message()
	if a.NotKept || len(message)-len(a.Body) > maxHead {
		return s.tombstone()
	}
	return settlement{store.Keep, s.record(message, c.maxAge), c.maxAge}
}

// record returns the record of a message.
func (s *requestState) record(message []byte, retention time.Duration) []byte {
	return s.m.options.KeyRing.Encrypt(s.m.client.Key(s.key), s.fingerprint, retention, deflate(message))
}

// tombstone returns how a run is settled whose answer is too long to be kept.
func (s *requestState) tombstone() settlement {
	if s.m.options.OnOversize == Rerun {
		return settlement{outcome: store.Release}
	}
	a := Answer{Status: s.answer.status, NotKept: true, trace: s.m.options.Trace(s.r.Context()), asked: s.asked}
	return settlement{store.Keep, s.record(a.message(), s.m.options.Retention), s.m.options.Retention}
}

// keeps reports whether the answer is kept.
func (s *requestState) keeps(c control) bool {
	o, status := &s.m.options, s.status()
	switch {
	case c.noStore || status < 200:
		return false
	case o.keepsStatus(status) && len(s.answer.header["Retry-After"]) == 0:
		return true
	}
	// The application may keep what the status alone would not, except a failure of the server,
	// because a retry may succeed.
	return c.asked && (status < 500 || o.keepsStatus(status))
}

// status returns the status that the answer is treated by: that of HTTP, or the one that stands for
// the status of gRPC or Connect.
func (s *requestState) status() int {
	w := s.answer
	if protocolOf(s.r.Header) == connectUnary && w.status >= 400 && !w.oversize {
		if status, ok := connectStatus(w.header.Get("Content-Encoding"), w.body); ok {
			return status
		}
	}
	if status, ok := rpcStatus(w.status, w.header, w.trailer, w.body, !w.oversize); ok {
		return status
	}
	return w.status
}

// settle settles the key and wakes waiters. It reports whether the lease was lost. If the store
// does not answer, settle goes on in the background.
func (s *requestState) settle(how settlement) (lost bool) {
	m := s.m
	s.settled = true
	asked := time.Now()
	err := m.apply(how, s.lease)
	s.event.Settling += time.Since(asked)
	switch {
	case err == nil:
		s.kept(how)
		m.local.leave(s.key, s.run, how.record)
		return false
	case errors.Is(err, dibs.ErrLost):
		m.local.leave(s.key, s.run, nil)
		return true
	case how.outcome == store.Release: // the client releases it in the background
		m.local.leave(s.key, s.run, nil)
		return false
	}
	s.event.Err = err
	if errors.Is(err, dibs.ErrTooLarge) && !s.tooLarge {
		// The store will refuse this record every time.
		s.tooLarge = true
		return s.settle(s.tombstone())
	}
	s.settleLater(how)
	return false
}

// kept notes that the store did what a settlement says.
func (s *requestState) kept(how settlement) {
	if how.outcome == store.Keep {
		s.event.Stored = true
		s.m.quota.add(s.principal, len(how.record), how.retention)
	}
}

// How often settleLater asks the store again.
const (
	settleAgainMin = 50 * time.Millisecond
	settleAgainMax = time.Second
)

// settleLater settles in the background, until the lease is lost.
func (s *requestState) settleLater(how settlement) {
	m, key, run, lease, keep := s.m, s.key, s.run, s.lease, how.outcome == store.Keep
	principal, room := s.principal, reservation{}
	if keep {
		room, s.room = s.room, room // the record stays in memory
		s.event.StoreFailed = true
		m.count(func(c *Stats) { c.StoreFailed++ })
	}
	giveUp := time.Now().Add(m.options.HandlerLimit)
	m.unsettled.Add(1)
	go func() {
		defer m.unsettled.Add(-1)
		defer room.end()
		for pause := settleAgainMin; ; pause = min(2*pause, settleAgainMax) {
			time.Sleep(pause)
			if keep && time.Now().After(giveUp) {
				// The store answers and takes no record, and the key must not be held forever.
				m.count(func(c *Stats) { c.StoreGivenUp++ })
				keep, how = false, settlement{outcome: store.Abandon}
				room.end()
			}
			err := m.apply(how, lease)
			if err != nil && !errors.Is(err, dibs.ErrLost) {
				continue
			}
			switch {
			case keep && err == nil:
				m.quota.add(principal, len(how.record), how.retention)
				m.count(func(c *Stats) { c.StoreRecovered++ })
			case keep:
				m.count(func(c *Stats) { c.StoreGivenUp++ })
				how.record = nil // which the store does not have
			}
			m.local.leave(key, run, how.record)
			return
		}
	}()
}

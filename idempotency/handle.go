package idempotency

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/dibs-go/dibs"
)

// handle runs the handler under the lease, settles the key, and sends the
// answer. A panic and runtime.Goexit pass through it.
func (v *visit) handle(lease *dibs.Lease) {
	m := v.m
	v.event.Attempt, v.event.Fence = lease.Attempt(), lease.Fence()
	start := time.Now()
	v.run.begin(lease, v.r.Context(), start.Add(m.options.HandlerLimit))
	v.flight.fingerprint, v.flight.lease, v.flight.since = v.print, lease, start
	m.tables.of(v.name).enter(v.name, &v.flight)
	m.running.of(v).set(v, start)
	v.answer = &v.capture
	v.answer.start(v.w, v.r, v.scratch, m.options.MaxStored)
	defer func() {
		if v.settled {
			return
		}
		// The handler has panicked, or a function of Options.
		v.answer.close()
		v.rollback()
		v.endRun(start)
		v.settle(lease, abandon, nil)
	}()
	if m.options.Transactor != nil {
		v.handleIn(lease, start)
		return
	}
	v.next.ServeHTTP(v.answer, v.forHandler(v.withBody(&v.run)))
	whole := v.answer.finish()
	v.endRun(start)
	v.conclude(lease, whole)
}

// endRun stops the handler's clock.
func (v *visit) endRun(start time.Time) {
	v.limited = !v.m.running.of(v).clear(v)
	v.event.Handler = time.Since(start)
}

// conclude settles the key after the handler has returned, and sends what there
// is to send.
func (v *visit) conclude(lease *dibs.Lease, whole bool) {
	answer := v.answer
	c := v.control()
	switch f := v.run.failed(); {
	case f == Unreached && !answer.streaming:
		v.concludeFailure(lease, f, release)
		return
	case f != noFailure:
		v.concludeFailure(lease, f, abandon)
		return
	case !whole:
		lost := v.settle(lease, abandon, nil)
		v.send(lost, OutcomeInterrupted)
		return
	}
	how, record := v.ends(c)
	v.send(v.settle(lease, how, record), OutcomeRan)
}

// control reads what the application asked for, and counts what made no sense.
func (v *visit) control() control {
	c := parseControl(v.answer.controls)
	v.m.count(c)
	return c
}

// ends says how a run with a whole answer ends, and makes the record.
func (v *visit) ends(c control) (settlement, []byte) {
	m := v.m
	record, tombstone := v.record(c)
	switch {
	case record == nil:
		return release, nil
	case tombstone:
		return m.keep(m.options.Retention), record
	default:
		return m.keep(c.maxAge), record
	}
}

// send sends an answer that was held back, or ends one that streamed. When the
// lease was lost, the answer counts for nothing.
func (v *visit) send(lost bool, o Outcome) {
	answer := v.answer
	v.event.Status = answer.status
	switch {
	case !lost:
		if !answer.streaming {
			answer.send()
		}
		answer.close()
		v.report(o)
	case answer.streaming:
		v.breakOff(OutcomeLost)
	default:
		answer.drop()
		answer.close()
		v.event.Err = dibs.ErrLost
		v.refuse(OutcomeLost, problemLost)
	}
}

// breakOff ends an answer of which bytes have left so that nobody takes it for
// a whole one.
func (v *visit) breakOff(o Outcome) {
	v.answer.close()
	v.event.Status = 0
	v.report(o)
	panic(http.ErrAbortHandler)
}

// concludeFailure settles a run whose origin gave no answer, and says so.
func (v *visit) concludeFailure(lease *dibs.Lease, f Failure, how settlement) {
	answer := v.answer
	lost := v.settle(lease, how, nil)
	o := OutcomeInterrupted
	if f == Unreached {
		o = OutcomeUnreached
	}
	switch {
	case answer.streaming:
		v.breakOff(o)
	case lost:
		v.send(true, o)
	default:
		answer.drop()
		answer.close()
		v.refuse(o, problemOf(f))
	}
}

// status is the status that the answer is treated by: that of HTTP, or what stands for the
// one of gRPC or Connect.
func (v *visit) status() int {
	s := v.scratch
	first := func(l *fieldList) func(string) string {
		return func(name string) string {
			if lines, _ := l.lookup(name); len(lines) > 0 {
				return lines[0]
			}
			return ""
		}
	}
	header := first(&s.header)
	if protocolOf(v.r.Header) == connectUnary && v.answer.status >= 400 && !v.answer.oversize {
		if status, ok := connectStatus(header("Content-Encoding"), s.answer); ok {
			return status
		}
	}
	if status, ok := rpcStatus(v.answer.status, header, first(&s.trailer), header("Content-Type"), s.answer, !v.answer.oversize); ok {
		return status
	}
	return v.answer.status
}

// keeps reports whether the answer is one to keep.
func (v *visit) keeps(c control) bool {
	o, status := &v.m.options, v.status()
	switch {
	case c.noStore || status < 200:
		return false
	case o.keepsStatus(status) && !v.comesBackLater():
		return true
	}
	// The application knows better than a rule about statuses, except that a failure of
	// the server is never made to last.
	return c.maxAge > 0 && (status < 500 || o.keepsStatus(status))
}

// comesBackLater reports whether the answer says that another one is to be had later.
func (v *visit) comesBackLater() bool {
	lines, _ := v.scratch.header.lookup("Retry-After")
	return len(lines) > 0
}

// record makes the record of the answer; nil when it is not kept. A tombstone
// is one that says no more than that there was an answer.
func (v *visit) record(c control) (record []byte, tombstone bool) {
	m, answer, s := v.m, v.answer, v.scratch
	if !v.keeps(c) {
		return nil, false
	}
	if answer.oversize || v.tooLarge {
		return v.tombstone(), true
	}
	message := appendMessage(s.message[:0], answer.status, &s.header, &s.trailer, s.answer, &m.filter, answer.sniffed, v.trace(), false)
	s.message = message
	if len(message)-len(s.answer) > maxHead {
		return v.tombstone(), true
	}
	s.record = appendDeflated(s.record[:0], message)
	return s.record, false
}

// trace names the trace that the run is in.
func (v *visit) trace() string {
	if v.m.options.Trace == nil {
		return ""
	}
	return v.m.options.Trace(v.r.Context())
}

// tombstone makes the record of an answer that is too long to be kept; nil when such a
// request is to run again.
func (v *visit) tombstone() []byte {
	m, s := v.m, v.scratch
	if m.options.OnOversize == Rerun {
		return nil
	}
	var none fieldList
	s.message = appendMessage(s.message[:0], v.answer.status, &none, &none, nil, &m.filter, "", v.trace(), true)
	s.record = appendDeflated(s.record[:0], s.message)
	return s.record
}

// settlement is how a run's key is settled.
type settlement struct {
	outcome   dibs.Outcome
	retention time.Duration
}

var (
	release = settlement{outcome: dibs.Release}
	// abandon settles a run that ended without an outcome as a crash would: the
	// next attempt is told, and under AtMostOnce there is none.
	abandon = settlement{outcome: dibs.Abandon}
)

func (m *Middleware) keep(maxAge time.Duration) settlement {
	if maxAge == 0 {
		maxAge = m.options.Retention
	}
	return settlement{outcome: dibs.Keep, retention: maxAge}
}

// settle settles the key and wakes its waiters. It reports whether the lease
// was lost. What the store does not take now is tried again in the background.
func (v *visit) settle(lease *dibs.Lease, how settlement, record []byte) (lost bool) {
	m := v.m
	v.settled = true
	asked := time.Now()
	var err error
	if v.limited {
		// The handler's time is over; its answer counts all the same.
		ctx, cancel := context.WithTimeout(context.Background(), m.options.StoreTimeout)
		err = how.apply(ctx, lease, record)
		cancel()
	} else {
		m.storing.of(v).set(v, asked)
		err = how.apply(v.tether.ctx, lease, record)
		if m.storing.of(v).clear(v) && err == nil {
			v.untether()
		}
	}
	v.event.Settling += time.Since(asked)
	switch {
	case err == nil:
		v.leave(how, record)
		return false
	case errors.Is(err, dibs.ErrLost):
		m.tables.of(v.name).leave(v.name, &v.flight, nil)
		return true
	case how.outcome == dibs.Release:
		// The client releases it in the background.
		m.tables.of(v.name).leave(v.name, &v.flight, nil)
		return false
	}
	v.event.Err = err
	v.scratch.record = nil // a call that was given up may still read it
	if errors.Is(err, dibs.ErrTooLarge) && !v.tooLarge {
		// The store will never take it, so that asking again would only end with the
		// lease. The request was served all the same.
		v.tooLarge = true
		if record = v.tombstone(); record == nil {
			return v.settle(lease, release, nil)
		}
		return v.settle(lease, m.keep(m.options.Retention), record)
	}
	v.settleLater(lease, how, record)
	return false
}

// leave ends the run in this process: its key is settled.
func (v *visit) leave(how settlement, record []byte) {
	table := v.m.tables.of(v.name)
	if how.outcome != dibs.Keep {
		table.leave(v.name, &v.flight, nil)
		return
	}
	v.event.Stored = true
	var shared []byte
	if table.waited(&v.flight) {
		shared = slices.Clone(record)
	}
	table.leave(v.name, &v.flight, shared)
}

// apply does what the settlement says.
func (s settlement) apply(ctx context.Context, lease *dibs.Lease, record []byte) error {
	switch s.outcome {
	case dibs.Keep:
		return lease.Complete(ctx, record, s.retention)
	case dibs.Abandon:
		return lease.Abandon(ctx)
	}
	return lease.Release()
}

// How often the store is asked again to take what it did not.
const (
	settleAgainMin = 50 * time.Millisecond
	settleAgainMax = time.Second
)

// settleLater settles in the background, as long as the lease stands. An answer
// that is sent already is what duplicates in this process get meanwhile.
func (v *visit) settleLater(lease *dibs.Lease, how settlement, record []byte) {
	m, name, flight := v.m, v.name, &v.flight
	if how.outcome == dibs.Keep {
		v.event.StoreFailed = true
		m.counts.storeFailed.Add(1)
		m.tables.of(name).answered(name, flight, record)
	}
	patience := time.Now().Add(m.options.HandlerLimit)
	m.background.run(func() {
		defer m.tables.of(name).leave(name, flight, nil)
		pause := settleAgainMin
		for {
			time.Sleep(pause)
			pause = min(2*pause, settleAgainMax)
			if how.outcome == dibs.Keep && time.Now().After(patience) {
				// The store answers and takes no record. The lease does not
				// stand for ever.
				m.counts.storeGivenUp.Add(1)
				how = abandon
			}
			ctx, cancel := context.WithTimeout(context.Background(), m.options.StoreTimeout)
			err := how.apply(ctx, lease, record)
			cancel()
			switch {
			case err == nil && how.outcome == dibs.Keep:
				m.counts.storeRecovered.Add(1)
				return
			case errors.Is(err, dibs.ErrLost) && how.outcome == dibs.Keep:
				m.counts.storeGivenUp.Add(1)
				return
			case err == nil, errors.Is(err, dibs.ErrLost):
				return
			}
		}
	})
}

// replay answers from a record.
func (v *visit) replay(record []byte) {
	m := v.m
	text, err := inflate(v.scratch.message[:0], record, m.options.MaxStored+2*maxHead)
	var msg message
	if err == nil {
		msg, err = parseMessage(text)
	}
	if err != nil {
		// Whatever it is: the request was served. It is not run again.
		v.event.Err = err
		p := problemNotKept
		p.Detail = "The stored answer cannot be read, or is longer than answers may be now. The request is not run again under this Idempotency-Key."
		v.refuse(OutcomeNotKept, p)
		return
	}
	v.event.First = msg.trace
	if msg.notKept {
		v.refuse(OutcomeNotKept, problemNotKept)
		return
	}
	v.sendStored(&msg)
	v.event.Status = msg.status
	v.report(OutcomeReplayed)
}

// sendStored sends a stored answer with framing of its own.
func (v *visit) sendStored(msg *message) {
	h := v.w.Header()
	// All values share one piece of memory.
	values := make([]string, 0, bytes.Count(msg.headLines, lineEnd)+1)
	last := ""
	msg.header(func(name, value string) {
		values = append(values, value)
		n := len(values)
		if name == last {
			h[name] = append(h[name], value)
			return
		}
		// What handlers around this one have set was part of the first answer.
		h[name] = values[n-1 : n : n]
		last = name
	})
	if msg.noType {
		h["Content-Type"] = nil // net/http would guess one
	}
	h[replayedField] = replayedTrue
	switch {
	case len(msg.tailLines) > 0:
		delete(h, "Content-Length")
		msg.trailer(func(name, _ string) {
			if !hasListToken(h["Trailer"], name) {
				h["Trailer"] = append(h["Trailer"], name)
			}
		})
	case bodyAllowed(msg.status):
		values = append(values, strconv.Itoa(len(msg.body)))
		h["Content-Length"] = values[len(values)-1:]
	default:
		delete(h, "Content-Length")
	}
	v.w.WriteHeader(msg.status)
	if bodyAllowed(msg.status) && len(msg.body) > 0 {
		_, _ = v.w.Write(msg.body)
	}
	if len(msg.tailLines) > 0 {
		msg.trailer(func(name, _ string) { delete(h, name) })
		msg.trailer(func(name, value string) { h[name] = append(h[name], value) })
	}
}

var lineEnd = []byte("\r\n")

// replayedTrue is the value of Idempotent-Replayed. It is shared: nobody
// changes a value in place.
var replayedTrue = []string{"true"}

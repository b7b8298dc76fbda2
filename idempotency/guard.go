package idempotency

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/linger"
)

// A visit is one guarded request on its way. All that it needs of its own is in
// one piece of memory; the rest is borrowed.
//
//	key, body, fingerprint ── malformed, too large ── refused
//	      │
//	in this process ── runs ── waits, or 409 ── answered ── replay
//	      │
//	    claim ── held, done, mismatch, unknown, no store ── answered
//	      │
//	   handler ── panic, failure, broken ── abandoned
//	      │
//	    settle ── lost ── 503
//	      │
//	     send
type visit struct {
	m    *Middleware
	w    http.ResponseWriter
	r    *http.Request
	next http.Handler

	scratch *scratch // nil: none
	body    body
	name    string // of the key
	print   dibs.Fingerprint
	number  uint32 // of this memory; see alarms.of
	turn    bool   // this visit was woken to take its turn
	shown   bool   // a handler has seen this memory, and may keep it
	settled bool   // the key is, or will be in the background
	told    bool   // Options.Observe was told of the request

	tooLarge bool // the store will never take the answer
	limited  bool // the handler's limit has ended the tether, or is about to
	event    Event

	tether  *tether
	alarm   alarm  // under the lock of its list
	flight  flight // under the table's lock
	run     run
	tx      dibs.Transaction // of the run, with Options.Transactor
	answer  *capture
	capture capture // the answer, unless it is that of another try
}

// guard serves a request of a guarded method.
func (m *Middleware) guard(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key, ok, err := "", false, error(nil)
	if m.options.Key == nil {
		if key, ok, err = m.options.headerKey(r.Header); err == nil && !ok && !m.options.RequireKey {
			m.unguarded(w, r, next)
			return
		}
	}
	v := visits.Get().(*visit)
	v.m, v.w, v.r, v.next = m, w, r, next
	v.event.Method = r.Method
	defer v.end()
	if err != nil {
		v.event.Err = err
		v.refuseUnread(OutcomeInvalid, keyProblem(err))
		return
	}
	if m.options.Key == nil && !ok {
		v.refuseUnread(OutcomeInvalid, problemKeyRequired)
		return
	}
	v.scratch = scratches.Get().(*scratch)
	v.scratch.request, err = v.body.read(w, r, &m.options, v.scratch.request)
	if err != nil {
		v.refuseBody(err)
		return
	}
	if m.options.Key != nil && !v.deriveKey(&key) {
		return
	}
	v.serve(key)
}

// deriveKey asks Options.Key. It reports false when the request has been
// served.
func (v *visit) deriveKey(key *string) bool {
	v.shown = true // who was given the body may keep it
	var err error
	*key, err = v.m.options.Key(v.r, v.body.section())
	if err == nil && *key != "" {
		err = checkKey(*key)
	}
	switch {
	case err != nil:
		v.event.Err = err
		v.refuse(OutcomeInvalid, keyProblem(err))
	case *key != "":
		return true
	case v.m.options.RequireKey:
		v.refuse(OutcomeInvalid, problemKeyRequired)
	default:
		v.told = true
		v.m.warn.noKey(v.m, v.r)
		v.m.unguarded(v.w, v.withBody(v.r.Context()), v.next)
	}
	return false
}

// withBody returns the request under another context, with the body that was
// read.
func (v *visit) withBody(ctx context.Context) *http.Request {
	v.shown = true
	r := v.r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &v.body
	}
	return r
}

// forHandler returns the request for a run, which no deadline of the client ends.
func (v *visit) forHandler(r *http.Request) *http.Request {
	r.Header = withoutDeadlines(r.Header)
	return r
}

// visits are those that no handler has seen: replays and refusals.
var visits = sync.Pool{New: func() any { return &visit{number: numbers.Add(1)} }}

// numbers number the visits' memory.
var numbers atomic.Uint32

// end ends the visit. One that nobody was told of is ended by a panic, of the handler or of
// another function of the application.
func (v *visit) end() {
	if !v.told {
		v.event.Status = 0
		v.report(OutcomeInterrupted)
	}
	v.free()
}

// free gives the borrowed memory back.
func (v *visit) free() {
	v.body.remove()
	if v.scratch != nil {
		v.scratch.free()
	}
	if !v.shown {
		*v = visit{number: v.number}
		visits.Put(v)
	}
}

// serve serves a request with a valid key whose body has been read.
func (v *visit) serve(key string) {
	m := v.m
	var err error
	principal := m.options.appendPrincipal(v.scratch.message[:0], v.r)
	v.scratch.message = principal
	m.warn.scope(m, v.r, len(principal) == 0)
	v.name, v.scratch.record = m.options.keyName(v.r, principal, key, v.scratch.record)
	v.event.name = v.name
	v.shown = v.shown || m.options.Fingerprint.Func != nil
	v.print, v.scratch.record, err = m.options.Fingerprint.of(v.r, &v.body, v.scratch.record)
	if err != nil {
		v.event.Err = err
		v.refuse(OutcomeInvalid, problemBodyBroken)
		return
	}
	start := time.Now()
	v.event.Start = start
	s, w, since, record := m.tables.of(v.name).look(v.name, v.print, m.options.Wait > 0)
	switch s {
	case sawMismatch:
		v.refuse(OutcomeMismatch, problemMismatch)
		return
	case sawRunning:
		v.conflict(m.retryRunning(start.Sub(since)))
		return
	case sawAnswer:
		v.replay(record)
		return
	case sawPlace:
		if !v.await(w, start) {
			return
		}
	}
	lease, record, claimed := v.claim(start)
	if !claimed {
		if v.turn {
			m.tables.of(v.name).hand(v.name, record)
		}
		return
	}
	v.handle(lease)
}

// await waits for the run that has the key in this process. It reports false
// when the request has been served.
func (v *visit) await(w *waiter, start time.Time) bool {
	timer := time.NewTimer(v.m.options.Wait)
	defer timer.Stop()
	var record []byte
	woken := true
	select {
	case record = <-w.woken:
	case <-timer.C:
		woken = false
	case <-v.r.Context().Done():
		woken = false
	}
	v.event.Waiting = time.Since(start)
	if !woken && !v.m.tables.of(v.name).giveUp(v.name, w) {
		// It was woken at the same moment.
		record, woken = <-w.woken, true
	}
	switch {
	case record != nil:
		v.replay(record)
	case v.r.Context().Err() != nil:
		if woken {
			v.m.tables.of(v.name).hand(v.name, nil)
		}
		v.canceled(v.inProgress(time.Second))
	case woken:
		v.turn = true
		return true
	default:
		v.conflict(v.m.retryRunning(v.event.Waiting))
	}
	return false
}

// claim asks for the key, waiting for it as Options.Wait says. When it is not
// granted, the request has been served, and the record with which it was is
// returned for those who wait behind it.
func (v *visit) claim(start time.Time) (lease *dibs.Lease, record []byte, ok bool) {
	m := v.m
	asked := start
	if v.event.Waiting > 0 {
		asked = time.Now()
	}
	v.tether = m.tethers.Get().(*tether)
	o := dibs.AcquireOptions{
		NoWait:      true,
		TTL:         m.options.Lease,
		Fingerprint: v.print,
		MaxAge:      dibs.AnyAge,
		AtMostOnce:  m.options.OnCrash == AtMostOnce,
		Label:       m.options.Label,
	}
	m.storing.of(v).set(v, asked)
	lease, err := m.client.Acquire(v.tether.ctx, v.name, &o)
	if !m.storing.of(v).clear(v) {
		lease, err = giveBack(lease, err, errStoreTimeout)
	}
	if m.options.Observe != nil {
		v.event.Claiming = time.Since(asked)
	}
	if m.options.Wait > 0 && errors.Is(err, dibs.ErrHeld) {
		if left := m.options.Wait - time.Since(start); left > 0 {
			lease, err = v.claimInTurn(&o, left)
		}
	}
	switch {
	case err == nil:
		return lease, nil, true
	case o.NoWait && !errors.Is(err, errStoreTimeout):
		v.untether()
	}
	return nil, v.refused(err), false
}

// untether leaves the tether to the next request, when nothing can end it any
// more and nothing hangs on it.
func (v *visit) untether() {
	if v.tether.ctx.Err() == nil {
		v.m.tethers.Put(v.tether)
	}
	v.tether = nil
}

// giveBack is for a claim that came to its end as it was answered: nothing has
// run, and nothing will.
func giveBack(lease *dibs.Lease, err, why error) (*dibs.Lease, error) {
	if err == nil {
		_ = lease.Release() // what fails is undone in the background
	}
	return nil, why
}

// claimInTurn waits in the key's queue, at most that long.
func (v *visit) claimInTurn(o *dibs.AcquireOptions, left time.Duration) (*dibs.Lease, error) {
	o.NoWait, o.Wait = false, left
	asked := time.Now()
	// Whoever goes away leaves the queue.
	end := v.tether.end
	stayed := context.AfterFunc(v.r.Context(), func() { end(errGone) })
	late := time.AfterFunc(left+v.m.options.StoreTimeout, func() { end(errStoreTimeout) })
	lease, err := v.m.client.Acquire(v.tether.ctx, v.name, o)
	v.event.Waiting += time.Since(asked)
	if !stayed() {
		lease, err = giveBack(lease, err, errGone)
	}
	if !late.Stop() && err == nil {
		lease, err = giveBack(lease, err, errStoreTimeout)
	}
	return lease, err
}

// errGone: the client went away while it waited.
var errGone = errors.New("idempotency: the client went away")

// refused answers a request whose claim was not granted. It returns the record
// that it was answered with, if any.
func (v *visit) refused(err error) (record []byte) {
	if done, ok := errors.AsType[*dibs.DoneError](err); ok {
		v.replay(done.Record.Data)
		return done.Record.Data
	}
	held, isHeld := errors.AsType[*dibs.HeldError](err)
	unknown, isUnknown := errors.AsType[*dibs.UnknownError](err)
	switch {
	case isHeld:
		v.conflict(v.m.retryHeld(held.Left))
	case isUnknown:
		p := problemUnknown
		p.Instance = ClaimURI(unknown.ID)
		v.refuse(OutcomeUnknown, p)
	case errors.Is(err, dibs.ErrMismatch):
		v.refuse(OutcomeMismatch, problemMismatch)
	case errors.Is(err, errGone):
		v.canceled(v.inProgress(time.Second))
	default:
		v.event.Err = err
		v.unavailable(err)
	}
	return nil
}

// ClaimURI names a claim in problem documents, by its public ID.
func ClaimURI(id string) string { return "urn:dibs:claim:" + id }

// unavailable serves a request without the store.
func (v *visit) unavailable(err error) {
	if v.m.options.OnStoreFailure != FailOpen || errors.Is(err, dibs.ErrClosed) {
		v.refuse(OutcomeUnavailable, problemUnavailable)
		return
	}
	v.m.counts.bypassed.Add(1)
	if v.turn {
		// Whoever waits next need not wait for this run, which guards nothing.
		v.turn = false
		v.m.tables.of(v.name).hand(v.name, nil)
	}
	start := time.Now()
	ended := false
	defer func() {
		v.event.Handler = time.Since(start)
		if !ended {
			v.event.Status = 0
		}
		v.report(OutcomeBypassed)
	}()
	v.event.Status = v.bypass()
	ended = true
}

// bypass runs the handler without a guard and returns the status.
func (v *visit) bypass() int {
	p := &passer{ResponseWriter: v.w, m: v.m, r: v.r, bypassed: true}
	v.next.ServeHTTP(p, v.withBody(v.r.Context()))
	p.end()
	return p.status
}

// retryHeld says when to ask again for a key that is held for that long unless
// it is renewed. A live holder renews every third of its lease: with more than
// two thirds left it lives, and then it pays to wait for as long again as it
// has been known to; with less it seems dead, and nothing changes before.
func (m *Middleware) retryHeld(left time.Duration) time.Duration {
	lease := m.options.Lease
	if left >= lease-lease/3 {
		left = lease - left
	}
	return max(time.Second, min(left, lease.Truncate(time.Second)))
}

// retryRunning says when to ask again for a key that has been held for so long.
func (m *Middleware) retryRunning(held time.Duration) time.Duration {
	return max(time.Second, min(held, m.options.Lease.Truncate(time.Second)))
}

func (v *visit) conflict(retry time.Duration) { v.refuse(OutcomeConflict, v.inProgress(retry)) }

// inProgress is what a duplicate is told while the key is held.
func (v *visit) inProgress(retry time.Duration) Problem {
	p := problemInProgress
	p.Status = v.m.options.ConflictStatus
	p.RetryAfter = retry
	return p
}

// refuse answers with a problem.
func (v *visit) refuse(o Outcome, p Problem) {
	v.event.Status = p.Status
	WriteProblem(v.w, v.r, v.m.options.DocsURL, p)
	v.report(o)
}

// refuseUnread answers with a problem while the client may still send the body.
func (v *visit) refuseUnread(o Outcome, p Problem) {
	linger.Answer(v.w, v.r, func() { v.refuse(o, p) })
}

func keyProblem(err error) Problem {
	p := problemKeyInvalid
	p.Detail = detailOf(err)
	return p
}

// detailOf returns the text of an error of our own, which quotes nothing of the
// request. What else a derivation returned stays in the event.
func detailOf(err error) string {
	for _, own := range keyErrors {
		if err == own {
			return "Nothing was run: " + own.Error() + "."
		}
	}
	return "Nothing was run: " + errKeyFailed.Error() + "."
}

func (v *visit) refuseBody(err error) {
	v.event.Err = err
	var outer *http.MaxBytesError
	var spilled *spillError
	switch {
	case errors.Is(err, errTooLarge):
		v.refuseUnread(OutcomeTooLarge, problemTooLarge)
	case errors.As(err, &outer):
		// Of another handler's limit, after which nothing can be read.
		v.refuse(OutcomeTooLarge, problemTooLarge)
	case errors.As(err, &spilled):
		v.refuseUnread(OutcomeUnavailable, problemNoRoom)
	case errors.Is(err, errStream), errors.Is(err, os.ErrDeadlineExceeded):
		if v.r.ProtoMajor == 1 { // over HTTP/2 it would end the connection for other requests
			linger.CloseAfter(v.w.Header())
		}
		if errors.Is(err, errStream) {
			v.refuse(OutcomeInvalid, problemStream)
			return
		}
		v.refuse(OutcomeInvalid, problemBodyTimeout)
	case v.r.Context().Err() != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		v.canceled(problemBodyBroken)
	default:
		v.refuse(OutcomeInvalid, problemBodyBroken)
	}
}

// canceled ends a request whose client has gone away. A client that has only stopped
// sending reads the problem; no client may take silence for success.
func (v *visit) canceled(p Problem) {
	v.event.Err = errGone
	v.refuse(OutcomeCanceled, p)
}

// report tells who observes.
func (v *visit) report(o Outcome) {
	v.told = true
	if v.m.options.Observe != nil {
		v.event.Outcome = o
		v.m.options.Observe(v.r.Context(), v.event)
	}
}

package idempotency

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/linger"
)

// A requestState is one guarded request while it is served.
//
//	key, body, fingerprint ── malformed, too large, too many requests ── refused
//	      │
//	in this process ── runs ── waits, or 409 ── answered ── replay
//	      │
//	    claim ── held, done, mismatch, unknown, no store ── answered
//	      │
//	   bounds ── full quota, no memory for the answer ── undone, refused
//	      │
//	   handler ── panic, failure, broken ── abandoned
//	      │
//	    settle ── lost ── 503
//	      │
//	     send
type requestState struct {
	m        *Middleware
	w        *pacedWriter
	r        *http.Request
	next     http.Handler
	event    Event
	observed bool // Options.Observe was called

	body        body
	key         string // its name in the store
	fingerprint dibs.Fingerprint
	asked       string // the digest of the whole request; "" unless only keys are compared
	principal   principalDigest
	turn        bool // it was woken to claim the key, before others that wait
	crowded     bool // Options.MaxWaiting others wait

	lease    *dibs.Lease
	run      *localRun
	ctx      *runContext
	tx       dibs.Transaction // of the run, with Options.Transactor
	answer   *recorder
	slot     reservation // of Options.MaxConcurrent
	room     reservation // of memory for the answer
	tooLarge bool        // the store will never take the answer
	settled  bool        // or will be in the background
}

// guard serves a request of a guarded method. When the transfer of its answer was broken, the client
// must not take the part for the whole.
func (m *Middleware) guard(w http.ResponseWriter, r *http.Request, next http.Handler) {
	p := &pacedWriter{ResponseWriter: w, m: m, r: r}
	defer p.end()
	m.guarded(p, r, next)
	if p.wasCut() {
		panic(http.ErrAbortHandler)
	}
}

// guarded is guard for a client that may be slow.
func (m *Middleware) guarded(w *pacedWriter, r *http.Request, next http.Handler) {
	derived := m.options.Key != nil
	key, found, err := "", false, error(nil)
	if !derived {
		key, found, err = m.options.headerKey(r.Header)
		if err == nil && !found && !m.options.RequireKey {
			m.unguarded(w.ResponseWriter, r, next)
			return
		}
	}
	s := &requestState{m: m, w: w, r: r, next: next, slot: reservation{bound: m.serving}, room: reservation{bound: m.memory}}
	s.body.room.bound, s.body.within.bound = m.memory, m.memory
	defer s.end()
	switch {
	case err != nil:
		s.event.Err = err
		s.refuseUnread(OutcomeInvalid, keyProblem(err))
		return
	case !derived && !found:
		s.refuseUnread(OutcomeInvalid, problemKeyRequired)
		return
	}
	if m.serving.full() { // at once, and not only when the body is there
		s.event.Err = errMaxConcurrent
		s.refuseUnread(OutcomeOverloaded, problemOverloaded)
		return
	}
	if err := s.body.read(w, r, &m.options); err != nil {
		s.body.room.end() // now, because the client may send the rest for long
		s.refuseBody(err)
		return
	}
	if derived && !s.deriveKey(&key) {
		return
	}
	if !s.slot.grow(1) { // only now, because a body that comes slowly must keep no other request out
		s.event.Err = errMaxConcurrent
		s.refuse(OutcomeOverloaded, problemOverloaded)
		return
	}
	s.serve(key)
}

// deriveKey asks Options.Key. It reports false when the request has been served.
func (s *requestState) deriveKey(key *string) bool {
	var err error
	*key, err = s.m.options.Key(s.r, s.body.inside())
	s.body.within.end()
	if err == nil && *key != "" {
		err = checkKey(*key)
	}
	switch {
	case err != nil:
		s.refuseInside(err, keyProblem(err))
	case *key != "":
		return true
	case s.m.options.RequireKey:
		s.refuse(OutcomeInvalid, problemKeyRequired)
	default:
		s.observed = true
		s.m.warn(&s.m.warned.noKey, s.r, "a request came without the key that Options.Key looks for: it runs without a guard. "+
			"Name what has the key (key of dibs proxy), or the sender (for), or refuse such requests (RequireKey; require-key)")
		s.m.unguarded(s.w.ResponseWriter, s.withBody(s.r.Context()), s.next)
	}
	return false
}

// withBody returns the request with the body from its beginning.
func (s *requestState) withBody(ctx context.Context) *http.Request {
	r := s.r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = io.NopCloser(s.body.reader())
	}
	return r
}

// end removes what is left of the request. If Options.Observe was not called, the handler or a
// function of Options has panicked.
func (s *requestState) end() {
	if !s.observed {
		s.event.Status = 0
		s.observe(OutcomeInterrupted)
	}
	s.body.remove()
	s.room.end()
	s.slot.end()
}

// errTypes says that the middleware and the handler could read the request in two ways.
var errTypes = errors.New("idempotency: the request has several Content-Type lines")

// serve serves a request with a valid key whose body has been read.
func (s *requestState) serve(key string) {
	m := s.m
	if len(s.r.Header["Content-Type"]) > 1 {
		s.event.Err = errTypes
		s.refuse(OutcomeInvalid, problemTypes)
		return
	}
	principal := m.options.principal(s.r)
	m.warnScope(s.r, principal)
	s.principal = m.quota.digest(principal)
	s.key = m.options.keyName(s.r, principal, key)
	s.event.key = s.key
	var err error
	if s.fingerprint, err = m.options.Fingerprint.of(s.r, &s.body); err == nil {
		s.asked, err = m.options.Fingerprint.whole(s.r, &s.body)
	}
	s.body.within.end()
	if err != nil {
		s.refuseInside(err, problemBodyBroken)
		return
	}
	s.event.Start = time.Now()
	if s.servedHere() {
		return
	}
	m.unsettled.Add(1)
	defer m.unsettled.Add(-1)
	switch err := s.claim(); {
	case err != nil:
		record := s.refused(err)
		if s.turn {
			m.local.pass(s.key, &localRun{fingerprint: s.fingerprint, record: record})
		}
	default:
		s.runNew()
	}
}

// servedHere serves a duplicate of a run in this process. It reports false if the request has to
// claim the key.
func (s *requestState) servedHere() bool {
	run, w := s.m.local.find(s.key, func(run *localRun) bool {
		return !run.fingerprint.Differs(s.fingerprint) && s.m.options.Wait > 0 && s.mayWait()
	})
	switch {
	case run == nil:
		return false
	case w != nil:
		return s.servedWaiting(w)
	case run.fingerprint.Differs(s.fingerprint):
		s.refuse(OutcomeMismatch, problemMismatch)
	default:
		s.refuseHeld(time.Since(run.began))
	}
	return true
}

// mayWait reports whether one more duplicate may wait. The caller gives its place back.
func (s *requestState) mayWait() bool {
	s.crowded = !s.m.waiting.take(1)
	return !s.crowded
}

// servedWaiting is servedHere for a duplicate that waits.
func (s *requestState) servedWaiting(w waiter) bool {
	ctx, cancel := context.WithTimeout(s.r.Context(), s.m.options.Wait)
	defer cancel()
	var run *localRun
	select {
	case run = <-w:
	case <-ctx.Done():
		if !s.m.local.quit(s.key, w) {
			run = <-w // at the same moment
		}
	}
	s.m.waiting.give(1)
	s.event.Waiting = time.Since(s.event.Start)
	switch {
	case run != nil && run.record != nil && !run.fingerprint.Differs(s.fingerprint):
		s.replay(run.record)
	case s.r.Context().Err() != nil:
		if run != nil {
			s.m.local.pass(s.key, new(localRun))
		}
		s.canceled(s.inProgress(0))
	case run != nil:
		s.turn = true
		return false
	default:
		s.refuseHeld(s.event.Waiting)
	}
	return true
}

// claim asks the store for the key, and waits for it as Options.Wait says.
func (s *requestState) claim() (err error) {
	o := &s.m.options
	options := dibs.AcquireOptions{
		NoWait: true, Detach: true,
		TTL: o.Lease, Fingerprint: s.fingerprint, MaxAge: dibs.AnyAge, AtMostOnce: o.OnCrash == AtMostOnce, Label: o.Label,
	}
	asked := time.Now()
	limit, stop := s.m.withStoreLimit(s.r.Context())
	defer stop()
	s.lease, err = s.m.client.Acquire(limit, s.key, &options)
	s.event.Claiming = time.Since(asked)
	left := o.Wait - time.Since(s.event.Start)
	if left <= 0 || !errors.Is(err, dibs.ErrHeld) || !s.mayWait() {
		return err
	}
	defer s.m.waiting.give(1)
	options.NoWait, options.Wait = false, left
	asked = time.Now()
	ctx, cancel := context.WithTimeoutCause(s.r.Context(), left+o.StoreTimeout, errStoreTimeout)
	defer cancel()
	s.lease, err = s.m.client.Acquire(ctx, s.key, &options)
	s.event.Waiting += time.Since(asked)
	return err
}

// refused answers a request whose claim was not granted. It returns the record that answered it, if
// any.
func (s *requestState) refused(err error) (record []byte) {
	if done, ok := errors.AsType[*dibs.DoneError](err); ok {
		s.replay(done.Record.Data)
		return done.Record.Data
	}
	held, isHeld := errors.AsType[*dibs.HeldError](err)
	unknown, isUnknown := errors.AsType[*dibs.UnknownError](err)
	switch {
	case isHeld:
		s.refuseHeld(s.m.retryHeld(held.Left))
	case isUnknown:
		p := problemUnknown
		p.Instance = ClaimURI(unknown.ID)
		s.refuse(OutcomeUnknown, p)
	case errors.Is(err, dibs.ErrMismatch):
		s.refuse(OutcomeMismatch, problemMismatch)
	case s.r.Context().Err() != nil:
		s.canceled(s.inProgress(0))
	case s.m.options.OnStoreFailure == FailOpen && !errors.Is(err, dibs.ErrClosed):
		s.event.Err = err
		s.bypass()
	default:
		s.event.Err = err
		s.refuse(OutcomeUnavailable, problemUnavailable)
	}
	return nil
}

// ClaimURI returns the URI that names a claim in problem documents. id is the claim's public ID.
func ClaimURI(id string) string { return "urn:dibs:claim:" + id }

// bypass runs the handler without a guard, because the store does not answer.
func (s *requestState) bypass() {
	s.m.count(func(c *Stats) { c.Bypassed++ })
	if s.turn {
		s.turn = false
		s.m.local.pass(s.key, new(localRun)) // the next waiter need not wait for a run without a guard
	}
	began := time.Now()
	s.w.begin(began.Add(s.m.options.HandlerLimit))
	defer func() {
		s.event.Handler = time.Since(began)
		s.observe(OutcomeBypassed)
	}()
	s.event.Status = s.m.pass(s.w, s.withBody(s.r.Context()), s.next, true)
}

// retryHeld returns when to ask again for a key whose lease has that time left. A live holder
// renews every third of its lease. With more than two thirds left the holder lives, so the client
// waits as long again as the holder is known to have lived. With less the holder seems dead, and
// nothing changes earlier.
func (m *Middleware) retryHeld(left time.Duration) time.Duration {
	if lease := m.options.Lease; left >= lease-lease/3 {
		return lease - left
	}
	return left
}

// inProgress is the answer to a duplicate while the key is held. retry is when to ask again: at
// least after a second, at most after a lease.
func (s *requestState) inProgress(retry time.Duration) Problem {
	p := problemInProgress
	p.Status = s.m.options.ConflictStatus
	p.RetryAfter = max(time.Second, min(retry, s.m.options.Lease.Truncate(time.Second)))
	return p
}

// refuseHeld refuses a duplicate while the key is held. It may ask again after retry.
func (s *requestState) refuseHeld(retry time.Duration) {
	o := OutcomeConflict
	if s.crowded {
		o, s.event.Err = OutcomeOverloaded, errMaxWaiting
	}
	s.refuse(o, s.inProgress(retry))
}

// refuse answers with a problem.
func (s *requestState) refuse(o Outcome, p Problem) {
	s.event.Status, s.event.Problem = p.Status, p.Name
	WriteProblem(s.w, s.r, s.m.options.DocsURL, p)
	s.observe(o)
}

// refuseUnread answers with a problem while the client may still send the body.
func (s *requestState) refuseUnread(o Outcome, p Problem) {
	linger.Answer(s.w, s.r, func() { s.refuse(o, p) })
}

// refuseBody answers a request whose body was not read.
func (s *requestState) refuseBody(err error) {
	s.event.Err = err
	_, outerLimit := errors.AsType[*http.MaxBytesError](err)
	_, noFile := errors.AsType[*fs.PathError](err)
	stopped := errors.Is(err, os.ErrDeadlineExceeded)
	if s.r.ProtoMajor == 1 && (stopped || errors.Is(err, errStream)) {
		// Over HTTP/2 this would end the connection for other requests.
		linger.CloseAfter(s.w.Header())
	}
	switch {
	case errors.Is(err, errTooLarge):
		s.refuseUnread(OutcomeTooLarge, problemTooLarge)
	case errors.Is(err, errMaxBodyMemory):
		s.refuseUnread(OutcomeOverloaded, problemOverloaded)
	case outerLimit: // of another handler, after which nothing can be read
		s.refuse(OutcomeTooLarge, problemTooLarge)
	case noFile:
		s.refuseUnread(OutcomeUnavailable, problemNoRoom)
	case errors.Is(err, errStream):
		s.refuse(OutcomeInvalid, problemStream)
	case stopped:
		s.refuse(OutcomeInvalid, problemBodyTimeout)
	case s.r.Context().Err() != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		s.canceled(problemBodyBroken)
	default:
		s.refuse(OutcomeInvalid, problemBodyBroken)
	}
}

// refuseInside answers a request whose body was read and cannot be looked into. p is the answer if
// that is not because of a bound.
func (s *requestState) refuseInside(err error, p Problem) {
	s.event.Err = err
	switch {
	case errors.Is(err, errTooLarge):
		s.refuse(OutcomeTooLarge, problemTooLarge)
	case errors.Is(err, errMaxBodyMemory):
		s.refuse(OutcomeOverloaded, problemOverloaded)
	default:
		s.refuse(OutcomeInvalid, p)
	}
}

// canceled ends a request whose client has gone away. It sends a problem, because a client that has
// only stopped sending must not take silence for success.
func (s *requestState) canceled(p Problem) {
	s.event.Err = errors.New("idempotency: the client went away")
	s.refuse(OutcomeCanceled, p)
}

// observe calls Options.Observe.
func (s *requestState) observe(o Outcome) {
	s.observed = true
	s.event.Outcome = o
	if s.w.wasCut() {
		s.event.Status = 0
		if s.event.Err == nil {
			s.event.Err = ErrSlowClient
		}
	}
	s.m.observe(s.r, s.event)
}

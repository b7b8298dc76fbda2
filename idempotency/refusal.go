package idempotency

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/slow"
)

// refuse answers with a problem.
func (x *exchange) refuse(kind EventKind, p Problem) {
	x.event.Status, x.event.Problem = p.Status, p.Name
	x.m.options.WriteProblem(x.w, x.req.Request, p)
	x.observe(kind)
}

// refuseUnread answers with a problem while the client may still send the body.
func (x *exchange) refuseUnread(kind EventKind, p Problem) {
	slow.Answer(x.w, x.req.Request, func() { x.refuse(kind, p) })
}

// refuseBody answers a request whose body was not read.
func (x *exchange) refuseBody(err error) {
	x.event.Err = err
	outer, hasOuter := errors.AsType[*http.MaxBytesError](err)
	_, noFile := errors.AsType[*fs.PathError](err)
	stopped := errors.Is(err, os.ErrDeadlineExceeded)
	if x.req.ProtoMajor == 1 && (stopped || errors.Is(err, errStream)) {
		// Over HTTP/2 this would end the connection for other requests.
		slow.CloseAfter(x.w.Header())
	}
	switch {
	case errors.Is(err, errTooLarge):
		x.refuseUnread(EventTooLarge, tooLarge(x.m.options.MaxBody))
	case errors.Is(err, errMaxBodyMemory):
		x.refuseUnread(EventOverloaded, problemOverloaded)
	case hasOuter: // of another handler, after which nothing can be read
		x.refuse(EventTooLarge, tooLarge(outer.Limit))
	case noFile:
		x.refuseUnread(EventUnavailable, problemNoRoom)
	case errors.Is(err, errStream):
		x.refuse(EventInvalid, problemStream)
	case stopped:
		x.refuse(EventInvalid, problemBodyTimeout)
	case x.req.Context().Err() != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		x.canceled(problemBodyBroken)
	default:
		x.refuse(EventInvalid, problemBodyBroken)
	}
}

// refuseInside answers a request whose body was read and cannot be looked into. p is the answer if
// that is not because of a bound.
func (x *exchange) refuseInside(err error, p Problem) {
	x.event.Err = err
	switch {
	case errors.Is(err, errTooLarge):
		x.refuse(EventTooLarge, problemTooLarge)
	case errors.Is(err, errMaxBodyMemory):
		x.refuse(EventOverloaded, problemOverloaded)
	default:
		x.refuse(EventInvalid, p)
	}
}

// canceled ends a request whose client has gone away. It sends a problem, because a client that has
// only stopped sending must not take silence for success.
func (x *exchange) canceled(p Problem) {
	x.event.Err = errors.New("idempotency: the client went away")
	x.refuse(EventCanceled, p)
}

// inProgress is the answer to a duplicate while the key is held. retry is when to ask again: at
// least after a second, at most after a lease.
func (x *exchange) inProgress(retry time.Duration) Problem {
	p := problemInProgress
	p.Status = x.m.options.ConflictStatus
	p.RetryAfter = max(time.Second, min(retry, x.m.options.Lease.Truncate(time.Second)))
	return p
}

// refuseHeld refuses a duplicate while the key is held. It may ask again after retry.
func (x *exchange) refuseHeld(retry time.Duration) {
	x.refuse(EventConflict, x.inProgress(retry))
}

// refuseMismatch refuses another request under the same key.
func (x *exchange) refuseMismatch() {
	p := problemMismatch
	p.Status = x.m.options.MismatchStatus
	x.refuse(EventMismatch, p)
}

// refuseClaim answers a request whose claim was not granted. It returns the record that answered it, if
// any.
func (x *exchange) refuseClaim(err error) (record []byte) {
	if done, ok := errors.AsType[*dibs.DoneError](err); ok {
		x.room.Owe(int64(len(done.Record.Data)))
		x.replay(done.Record.Data)
		return done.Record.Data
	}
	held, isHeld := errors.AsType[*dibs.HeldError](err)
	unknown, isUnknown := errors.AsType[*dibs.UnknownError](err)
	switch {
	case err == errMaxBodyMemory:
		x.event.Err = err
		x.refuse(EventOverloaded, problemOverloaded)
	case isHeld:
		x.refuseHeld(x.m.retryHeld(held.Left))
	case isUnknown:
		p := problemUnknown
		p.Instance = ClaimURI(unknown.ID)
		x.refuse(EventUnknown, p)
	case errors.Is(err, dibs.ErrMismatch):
		x.refuseMismatch()
	case x.req.Context().Err() != nil:
		x.canceled(x.inProgress(0))
	case x.m.options.OnStoreFailure == FailOpen && !errors.Is(err, dibs.ErrClosed):
		x.event.Err = err
		x.bypass()
	default:
		x.event.Err = err
		x.refuse(EventUnavailable, problemUnavailable)
	}
	return nil
}

// ClaimURI returns the URI that names a claim in problem documents. id is the claim's public ID.
func ClaimURI(id string) string { return "urn:dibs:claim:" + id }

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

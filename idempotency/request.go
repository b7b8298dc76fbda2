package idempotency

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/dialect"
)

// A request is what the client of a guarded request sent.
type request struct {
	*http.Request
	body        body
	key         string // its name in the store
	fingerprint dibs.Fingerprint
	whole       string        // the digest of the whole request; "" unless only keys are compared
	retention   time.Duration // of its answer; 0: Options.Retention
	call        dialect.Call
}

// receive reads the request. If it can be read, it is served.
func (x *exchange) receive() {
	defer x.end()
	o := &x.m.options
	key, found, err := "", false, error(nil)
	if o.Key == nil {
		key, found, err = o.headerKey(x.req.Header)
	}
	x.req.call, _ = x.dialect.Read(nil)
	switch {
	case x.req.call.Kind == dialect.SessionEnd:
		x.keepSession()
		return
	case x.req.call.Kind == dialect.Unguarded:
		x.unguarded(x.req.Request)
		return
	case err != nil:
		x.event.Err = err
		x.refuseUnread(EventInvalid, keyProblem(err))
		return
	case o.Key == nil && !found && o.RequireKey:
		x.refuseUnread(EventInvalid, problemKeyRequired)
		return
	case o.Key == nil && !found:
		x.unguarded(x.req.Request)
		return
	case x.isFull(): // at once, and not only when the body is there
		x.event.Err = errMaxConcurrent
		x.refuseUnread(EventOverloaded, problemOverloaded)
		return
	}
	if err := x.req.body.read(x.w, x.req.Request, o); err != nil {
		x.req.body.remove() // now, because the client may send the rest for long
		x.refuseBody(err)
		return
	}
	if x.req.call.Kind == dialect.Unread && !x.readCall() {
		return
	}
	if o.Key != nil {
		key, err = x.req.derivedKey(o)
		switch {
		case err != nil:
			x.refuseInside(err, keyProblem(err))
			return
		case key == "" && o.RequireKey:
			x.refuse(EventInvalid, problemKeyRequired)
			return
		case key == "":
			x.m.warn(&x.m.warned.noKey, x.req.Request, "a request came without the key that Options.Key looks for: it runs without a guard. "+
				"Name what has the key (Options.Key), or refuse such requests (Options.RequireKey)")
			x.unguarded(x.req.withBody(x.req.Context()))
			return
		case x.req.call.Keyless:
			x.refuse(EventInvalid, problemCall)
			return
		case x.req.call.Begin != nil:
			// Before the store is asked, because the client can cancel the call from now on.
			defer x.req.call.Begin()()
		}
	}
	if !x.slot.Try(1) { // only now, because a body that comes slowly must keep no other request out
		x.event.Err = errMaxConcurrent
		x.refuse(EventOverloaded, problemOverloaded)
		return
	}
	x.identify(key)
}

// readCall reads what the body says of the request. If it does not run under a key, it has been served,
// and readCall reports false.
func (x *exchange) readCall() bool {
	call, err := x.dialect.Read(x.req.body.inside())
	x.req.body.within.Close()
	x.req.call = call
	switch {
	case err == dialect.ErrCall:
		x.event.Err = err
		x.refuse(EventInvalid, problemCall)
	case err != nil:
		x.refuseInside(err, problemNoMessage)
	case call.Kind == dialect.Cancellation:
		x.holdBack()
	case call.Kind == dialect.Guarded:
		return true
	default:
		x.unguarded(x.req.withBody(x.req.Context()))
	}
	return false
}

// isFull reports whether Options.MaxConcurrent requests are served.
func (x *exchange) isFull() bool {
	for _, b := range x.m.serving {
		return b.Used() >= b.Most()
	}
	return false
}

// errTypes says that the middleware and the handler could read the request in two ways.
var errTypes = errors.New("idempotency: the request has several Content-Type lines")

// identify finds whose request it is, and what it asks for. Then it is served.
func (x *exchange) identify(key string) {
	o, req := &x.m.options, &x.req
	if len(req.Header["Content-Type"]) > 1 {
		x.event.Err = errTypes
		x.refuse(EventInvalid, problemTypes)
		return
	}
	principal := o.principal(req.Request)
	x.m.warnScope(req.Request, principal)
	var err error
	if asked := req.call.Asked; asked != nil {
		req.fingerprint = *asked
	} else if req.fingerprint, err = o.Fingerprint.of(req.Request, &req.body); err == nil {
		req.whole, err = o.Fingerprint.whole(req.Request, &req.body)
	}
	req.body.within.Close()
	req.key = o.keyName(req, principal, key)
	x.event.key = x.m.client.Key(req.key)
	if err != nil {
		x.refuseInside(err, problemBodyBroken)
		return
	}
	x.event.Start = time.Now()
	x.join()
}

// derivedKey returns what Options.Key finds; "" if the request has no key.
func (r *request) derivedKey(o *Options) (string, error) {
	key, err := o.Key(r.Request, r.body.inside())
	r.body.within.Close()
	if err == nil && key == "" {
		key, r.retention = r.call.Key, r.call.Retention
	}
	if err == nil && key != "" {
		err = content.CheckKey(key)
	}
	return key, err
}

// withBody returns the request with the body from its beginning.
func (r *request) withBody(ctx context.Context) *http.Request {
	again := r.WithContext(ctx)
	if again.Body != nil && again.Body != http.NoBody {
		again.Body = io.NopCloser(r.body.reader())
	}
	return again
}

package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/dialect"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/slow"
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

// errTooLarge: the body is longer than Options.MaxBody, or what it contains is.
var errTooLarge = content.ErrTooLarge

// errStream: the request waits for an answer before it goes on.
var errStream = errors.New("the request is a stream, which cannot be guarded")

// A body is a request's body, read whole before the handler runs: in memory, or in a temporary file
// if it is longer than Options.MaxMemory.
type body struct {
	bytes  []byte
	file   *os.File // nil: in memory
	path   string   // of the file, while it has a name
	size   int64
	room   memory.Account // of the memory
	onDisk memory.Account // of the file
	within memory.Account // of memory for what is made of it while it is looked into
}

// read reads all of r's body. It returns errTooLarge, errMaxBodyMemory, errStream, an
// *fs.PathError of the temporary file, or the connection's error.
func (b *body) read(w http.ResponseWriter, r *http.Request, o *Options) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength > o.MaxBody {
		return errTooLarge
	}
	paced := slow.NewReader(w, r, o.BodyTimeout, slow.LeastRate)
	in := io.Reader(paced)
	if dialect.MayStream(r.Header) {
		in = &unaryReader{Reader: paced}
	}
	limit := min(o.MaxMemory, o.MaxBody)
	size := min(511, limit)
	if n := r.ContentLength; n >= 0 {
		size = min(n, limit, inAdvance) // the rest when it arrives
	}
	read, ended := make([]byte, 0, size+1), false // one more, to see the end without growing
	for !ended && int64(len(read)) <= limit {
		if int64(len(read)) > size {
			more := min(size+1, limit-size)
			if n := r.ContentLength; size < n {
				more = min(more, n-size)
			}
			size += more
			read = append(make([]byte, 0, size+1), read...)
		}
		n, err := in.Read(read[len(read):cap(read)])
		read = read[:len(read)+n]
		if !b.room.Try(int64(n)) {
			return errMaxBodyMemory
		}
		if ended = err == io.EOF; err != nil && !ended {
			return err
		}
	}
	b.size = int64(len(read))
	switch {
	case b.size > o.MaxBody:
		return errTooLarge
	case !ended:
		return b.spill(read, in, o)
	}
	b.bytes = read
	return nil
}

// inAdvance is how much memory a body has, in bytes, before any of it is there.
const inAdvance = 16 << 10

// spill writes what was read of the body, and then its rest, into a temporary file.
func (b *body) spill(read []byte, in io.Reader, o *Options) (err error) {
	if b.file, err = os.CreateTemp("", "dibs-body-"); err != nil {
		return err
	}
	if b.path = b.file.Name(); os.Remove(b.path) == nil {
		b.path = "" // a file without a name ends with the process
	}
	to := countedFile{b.file, &b.onDisk}
	if _, err = to.Write(read); err != nil {
		return err
	}
	b.room.Close()
	rest, err := io.Copy(to, io.LimitReader(in, o.MaxBody+1-b.size))
	if b.size += rest; err == nil && b.size > o.MaxBody {
		err = errTooLarge
	}
	return err
}

// A countedFile counts what is written into it before that is on the disk.
type countedFile struct {
	file *os.File
	room *memory.Account
}

// Write returns errMaxBodyMemory if there is no room.
func (f countedFile) Write(p []byte) (int, error) {
	if !f.room.Try(int64(len(p))) {
		return 0, errMaxBodyMemory
	}
	return f.file.Write(p)
}

// reader returns a new reader of the body.
func (b *body) reader() *io.SectionReader {
	if b.file != nil {
		return io.NewSectionReader(b.file, 0, b.size)
	}
	return io.NewSectionReader(bytes.NewReader(b.bytes), 0, b.size)
}

// inside returns a new reader of the body for functions that look into it. The caller ends
// b.within after them.
func (b *body) inside() *insideReader { return &insideReader{b.reader(), &b.within, b.room.Held()} }

// sum returns the SHA-256 digest of the body.
func (b *body) sum() (sum [sha256.Size]byte, err error) {
	if b.file == nil {
		return sha256.Sum256(b.bytes), nil
	}
	h := sha256.New()
	_, err = io.Copy(h, b.reader())
	h.Sum(sum[:0])
	return sum, err
}

// remove removes the temporary file and gives the memory back: the request is over.
func (b *body) remove() {
	b.bytes = nil
	b.room.Close()
	b.within.Close()
	b.onDisk.Close()
	if b.file == nil {
		return
	}
	_ = b.file.Close() // nothing is left to be written
	if b.path != "" {
		_ = os.Remove(b.path)
	}
	b.file = nil
}

package idempotency

import (
	"maps"
	"net/http"
	"strconv"
)

// decode decrypts and parses a record.
func (x *exchange) decode(record []byte) (*Answer, error) {
	record, err := x.m.options.KeyRing.Decrypt(x.m.client.Key(x.req.key), x.req.fingerprint, record)
	if err != nil {
		return nil, err
	}
	return decodeAnswer(record, x.m.options.MaxStored+2*maxHead, func(n int64) bool {
		n = min(n, x.m.options.MaxStored-x.room.Held())
		return n <= 0 || x.room.Try(n)
	})
}

// replay answers from a record.
func (x *exchange) replay(record []byte) {
	a, err := x.decode(record)
	if err == errMaxBodyMemory {
		x.event.Err = err
		x.refuse(EventOverloaded, problemOverloaded)
		return
	}
	if err != nil { // the request was served, whatever the record is
		x.event.Err = err
		x.m.warn(&x.m.warned.unreadable, x.req.Request, "a stored answer cannot be read: retries of its request are refused", "error", err)
		x.refuse(EventNotKept, problemNotKept)
		return
	}
	x.event.First = a.trace
	x.warnOther(a)
	if a.NotKept {
		x.refuse(EventNotKept, problemNotKept)
		return
	}
	a.Body = x.dialect.Replay(a.Header, a.Body)
	x.req.body.remove()
	x.slot.Close()
	a.send(x.w, x.req.Method)
	x.event.Status = a.Status
	x.observe(EventReplayed)
}

// warnOther warns if the answer is that of another request, which only its key has in common with
// this one: perhaps the key does not tell two events apart, and one of them was lost.
func (x *exchange) warnOther(a *Answer) {
	if a.asked != "" && x.req.whole != "" && a.asked != x.req.whole {
		x.m.warn(&x.m.warned.otherRequest, x.req.Request, "one key came with two different requests, and the second got the first one's answer without a run, "+
			"because nothing but the key is compared: if these are two events, choose a key that tells them apart "+
			"(Options.Key), or compare more (Fingerprint.KeyAlone)", "key", x.event.Key())
	}
}

// send sends a stored answer with new framing. Its fields replace those that outer handlers have
// set, which were part of the first answer. The length of an answer to HEAD is not known.
func (a *Answer) send(w http.ResponseWriter, method string) {
	h := w.Header()
	maps.Copy(h, a.Header)
	if _, typed := a.Header["Content-Type"]; !typed {
		h["Content-Type"] = nil // net/http would guess one
	}
	h[replayedField] = []string{"true"}
	delete(h, "Content-Length")
	switch {
	case len(a.Trailer) > 0:
		announceTrailer(h, a.Trailer)
	case bodyAllowed(a.Status) && method != http.MethodHead:
		h["Content-Length"] = []string{strconv.Itoa(len(a.Body))}
	}
	w.WriteHeader(a.Status)
	if bodyAllowed(a.Status) && len(a.Body) > 0 {
		_, _ = w.Write(a.Body)
	}
	maps.Copy(h, a.Trailer)
}

package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/store"
)

// call is one call of a verb.
type call struct {
	*Server
	by *caller
}

// claim serves POST /v1/claim.
func (c *call) claim(ctx context.Context, body []byte) ([]byte, *problem) {
	asked, p := c.readClaims(body)
	if p == nil {
		p = c.takeFor(ctx, len(asked.Claims))
	}
	if p != nil {
		return nil, p
	}
	exchangeOf(ctx).timeout = asked.Timeout
	answers := make([]store.Answer, len(asked.Claims))
	if asked.Wait > 0 && len(answers) > 0 {
		p = c.await(ctx, &asked, answers)
	} else {
		p = c.ask(ctx, asked.Claims, answers)
	}
	if p != nil {
		return nil, p
	}
	return c.writeClaims(ctx, asked.Claims, answers), nil
}

// readClaims reads the body of a claim that the credential may make.
func (c *call) readClaims(body []byte) (asked leaseapi.ClaimCall, p *problem) {
	asked, err := leaseapi.ReadClaims(body)
	if err != nil {
		return asked, unreadable(err)
	}
	for i := range asked.Claims {
		claim := &asked.Claims[i]
		if p := c.place(&claim.Key); p != nil {
			return asked, p
		}
		if asked.Wait > 0 && (claim.Mode == store.Try || claim.Mode == store.Reserve) {
			return asked, problemInvalid.with("wait_ms needs claims whose mode is queue or look.")
		}
	}
	return asked, nil
}

// writeClaims returns the body of the answer to claims.
func (c *call) writeClaims(ctx context.Context, claims []store.Claim, answers []store.Answer) []byte {
	out := make([]leaseapi.Answer, len(answers))
	for i := range answers {
		c.waiters.note(&claims[i], &answers[i])
		out[i] = leaseapi.AnswerOf(&answers[i])
		out[i].Namespace = claims[i].Key.Namespace
	}
	note(ctx, "claim", out)
	c.count(out)
	return leaseapi.WriteAnswers(out)
}

// takeFor takes the memory of n elements until the call is over.
func (c *call) takeFor(ctx context.Context, n int) *problem {
	size := int64(n) * elementMemory
	if !c.take(exchangeOf(ctx), size) {
		return c.noMemory("elements")
	}
	return nil
}

// note counts the elements of an answer.
func note(ctx context.Context, verb string, answers []leaseapi.Answer) {
	outcomes := map[string]int{}
	for _, a := range answers {
		outcome := cmp.Or(a.State, "done")
		if a.Error != nil {
			outcome = a.Error.Type
		}
		outcomes[outcome]++
	}
	x := exchangeOf(ctx)
	x.call.Verb, x.call.Outcomes = verb, outcomes
}

// renew serves POST /v1/renew.
func (c *call) renew(ctx context.Context, body []byte) ([]byte, *problem) {
	renewals, err := leaseapi.ReadRenewals(body)
	return settleAll(ctx, c, "renew", renewals, err, c.renewals.DoAll, (*store.Renewal).Validate, func(r *store.Renewal) *dibs.Key { return &r.Key })
}

// settle serves POST /v1/settle.
func (c *call) settle(ctx context.Context, body []byte) ([]byte, *problem) {
	settlements, err := leaseapi.ReadSettlements(body)
	for i := range settlements {
		c.waiters.settled(settlements[i].Token)
		c.records.note(len(settlements[i].Data))
	}
	return settleAll(ctx, c, "settle", settlements, err, c.settlements.DoAll, (*store.Settlement).Validate, func(s *store.Settlement) *dibs.Key { return &s.Key })
}

// settleAll does what renewals and settlements have in common.
func settleAll[E any](ctx context.Context, c *call, verb string, elements []E, err error,
	send func(context.Context, []E, []error) error, validate func(*E) error, key func(*E) *dibs.Key,
) ([]byte, *problem) {
	if err != nil {
		return nil, unreadable(err)
	}
	for i := range elements {
		if p := c.place(key(&elements[i])); p != nil {
			return nil, p
		}
	}
	if p := c.takeFor(ctx, len(elements)); p != nil {
		return nil, p
	}
	errs := make([]error, len(elements))
	if p := each(ctx, elements, errs, send, validate, func(e *error, err error) { *e = err }); p != nil {
		return nil, p
	}
	for i, err := range errs {
		// The API has no element whose outcome is unknown. A renewal may have been made.
		if verb == "settle" && err != nil && !store.Definite(err) && validate(&elements[i]) == nil {
			return nil, &problemStore
		}
	}
	out := make([]leaseapi.Answer, len(errs))
	for i, err := range errs {
		out[i].Error = leaseapi.ErrorOf(err)
	}
	note(ctx, verb, out)
	return leaseapi.WriteAnswers(out), nil
}

// Records of at most maxRecords bytes are in one answer, and claims that a record may answer
// are sent to the store in parts, so that no more are in memory.
const (
	maxRecords = 32 << 20
	recordPart = 16
)

// errTooMuch is the error of the claims that are left when an answer has enough records.
var errTooMuch = fmt.Errorf("%w: the records of the call's other claims have %d MiB; claim fewer keys in one call", dibs.ErrBusy, maxRecords>>20)

// ask sends claims to the store once.
func (s *Server) ask(ctx context.Context, claims []store.Claim, answers []store.Answer) *problem {
	part := len(claims)
	records := false
	for i := range claims {
		records = records || claims[i].MaxAge > 0
	}
	if records {
		part = recordPart
	}
	bytes, x := 0, exchangeOf(ctx)
	for from, to := 0, 0; from < len(claims); from = to {
		to = min(from+part, len(claims))
		taken, refused := int64(0), error(nil)
		switch {
		case bytes > maxRecords:
			to, refused = len(claims), errTooMuch
		case records:
			n := 0
			if n, taken = s.takeRecords(ctx, claims[from:to], from == 0); n == 0 {
				to, refused = len(claims), errNoMemory
			} else {
				to = from + n
			}
		}
		if refused != nil {
			for i := from; i < to; i++ {
				answers[i] = store.Answer{Err: refused}
			}
			continue
		}
		if p := each(ctx, claims[from:to], answers[from:to], s.claimAll, (*store.Claim).Validate, func(a *store.Answer, err error) { *a = store.Answer{Err: err} }); p != nil {
			return p
		}
		all := int64(0)
		for i := from; i < to; i++ {
			got := len(answers[i].Record.Data) + len(answers[i].Progress)
			bytes += got
			if claims[i].MaxAge > 0 {
				s.records.note(got)
			}
			all += int64(got) * dataMemory
		}
		x.records.Owe(all - taken)
		x.records.Keep(x.records.Held()) // a call that waits must not exceed the bound meanwhile
	}
	return nil
}

// takeRecords takes the memory of the records that may answer claims, before they are read. It returns
// of how many claims: the first one of a call waits for room. It asks the store how long the records
// are, unless none has been large for a while. It is not inlined, because claims that wait for a lease
// should have small frames.
//
//go:noinline
func (s *Server) takeRecords(ctx context.Context, claims []store.Claim, first bool) (n int, taken int64) {
	in, ok := s.store.(store.Inspector)
	if !ok || s.records.areSmall() {
		return len(claims), 0
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.StoreTimeout)
	defer cancel()
	room := &exchangeOf(ctx).records
	for i := range claims {
		k, size := &claims[i].Key, int64(0)
		if claims[i].MaxAge > 0 {
			for e, err := range in.List(ctx, store.Query{Namespace: &k.Namespace, Name: k.Name}) {
				if err == nil && e.Record != nil { // if it fails, the claim fails too
					size += int64(e.Record.Bytes) * dataMemory
				}
			}
		}
		if first && i == 0 && room.Wait(ctx, size) != nil || (!first || i > 0) && !room.Try(size) {
			return i, taken
		}
		taken += size
	}
	return len(claims), taken
}

// each sends elements to the store. What no store accepts is not sent, because the error of an element
// must not be one of the call.
func each[Q, A any](ctx context.Context, qs []Q, as []A, send func(context.Context, []Q, []A) error, validate func(*Q) error, fail func(*A, error)) *problem {
	valid, at := make([]Q, 0, len(qs)), make([]int, 0, len(qs))
	for i := range qs {
		if err := validate(&qs[i]); err != nil {
			fail(&as[i], err)
			continue
		}
		valid, at = append(valid, qs[i]), append(at, i)
	}
	got := make([]A, len(valid))
	switch err := send(ctx, valid, got); {
	case errors.Is(err, errOverdue):
		return &problemOverdue
	case errors.Is(err, errGone):
		exchangeOf(ctx).gone = true
		return &problemStore // nobody reads it
	case err != nil:
		return &problemStore
	}
	for j, i := range at {
		as[i] = got[j]
	}
	return nil
}

// place puts a key into the namespace of the call's credential. No call can leave it.
func (c *call) place(k *dibs.Key) *problem {
	switch {
	case k.Namespace == leaseapi.Namespace:
		k.Namespace = c.by.Namespace
	case k.Namespace != c.by.Namespace && !c.by.Free:
		return problemForbidden.with(fmt.Sprintf("The credential %s is for the namespace %q, and the call names %q. Commands of dibs take it as --namespace %[2]q.", c.by.Name, c.by.Namespace, k.Namespace))
	}
	return nil
}

// unreadable returns the problem of a body that cannot be read.
func unreadable(err error) *problem {
	if many, ok := errors.AsType[*leaseapi.TooManyError](err); ok {
		return problemTooLarge.with(many.Error() + ".")
	}
	return problemInvalid.with(err.Error() + ".")
}

// counted calls h for a call that is within the bounds on calls under way.
func (s *Server) counted(h func(http.ResponseWriter, *http.Request, *caller)) func(http.ResponseWriter, *http.Request, *caller) {
	return func(w http.ResponseWriter, r *http.Request, by *caller) {
		if !take(&s.load.calls, 1, s.config.MaxCalls) {
			refuse(w, r, problemOverloaded.with(fmt.Sprintf("The server has %d calls under way, its --max-calls.", s.config.MaxCalls)))
			return
		}
		defer s.load.calls.Add(-1)
		if most := s.each(s.config.MaxCalls); !take(&by.load.calls, 1, most) {
			refuse(w, r, problemOverloaded.with(fmt.Sprintf("The credential has %d calls under way, half of the server's --max-calls.", most)))
			return
		}
		defer by.load.calls.Add(-1)
		h(w, r, by)
	}
}

// guarded returns the handler of calls that have a body, for credentials with the role.
func (s *Server) guarded(role credential.Role, leases bool, do func(*call, context.Context, []byte) ([]byte, *problem)) http.HandlerFunc {
	return s.guard(role, s.counted(func(w http.ResponseWriter, r *http.Request, by *caller) {
		x := exchangeOf(r.Context())
		s.open(x, by, leases)
		body, p := s.body(w, r)
		if p != nil {
			x.memory.Close() // now, because the client may send the rest for long
			x.records.Close()
			refuse(w, r, p)
			return
		}
		text, p := do(&call{s, by}, r.Context(), body)
		if p != nil {
			refuse(w, r, p)
			return
		}
		x.memory.Close()
		x.records.Keep(int64(len(text)))
		s.answer(w, text)
	}))
}

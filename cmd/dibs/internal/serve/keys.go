package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/internal/slow"
	"github.com/dibs-go/dibs/store"
)

var conditions = []store.Condition{
	store.ConditionHeld, store.ConditionUnknown, store.ConditionWaiting, store.ConditionDone, store.ConditionAbandoned,
}

// query reads the parameters of GET /v1/keys.
func query(values url.Values) (q store.Query, err error) {
	for name, all := range values {
		value := all[len(all)-1]
		switch name {
		case "namespace":
			q.Namespace = &value
			err = (dibs.Key{Namespace: value, Name: "-"}).Validate()
		case "key":
			if q.Name = value; len(value) == 0 || len(value) > store.MaxKey {
				err = fmt.Errorf("key has %d bytes; it must have 1 to %d", len(value), store.MaxKey)
			}
		case "id":
			q.ID = value
		case "state":
			for state := range strings.SplitSeq(value, ",") {
				if !slices.Contains(conditions, store.Condition(state)) {
					return q, fmt.Errorf("state is %q; the states are %v", state, conditions)
				}
				q.Conditions = append(q.Conditions, store.Condition(state))
			}
		case "held_for_ms":
			var ms uint64
			if ms, err = strconv.ParseUint(value, 10, 40); err != nil {
				err = errors.New("held_for_ms must be a number of milliseconds, below 2^40")
			}
			q.HeldFor = time.Duration(ms) * time.Millisecond
		case "places", "data":
			var on bool
			if on, err = strconv.ParseBool(value); err != nil {
				err = fmt.Errorf("%s must be true or false", name)
			}
			q.Places = q.Places || name == "places" && on
			q.Data = q.Data || name == "data" && on
		default:
			err = fmt.Errorf("the parameter %q is unknown; there are namespace, key, id, state, held_for_ms, places and data", name)
		}
		if err == nil && len(all) > 1 {
			err = fmt.Errorf("the parameter %s comes twice", name)
		}
		if err != nil {
			return q, err
		}
	}
	return q, nil
}

// list serves GET /v1/keys: a JSON line for each key.
func (s *Server) list(w http.ResponseWriter, r *http.Request, by *caller) {
	q, err := query(r.URL.Query())
	if err != nil {
		refuse(w, r, problemInvalid.with(err.Error()+"."))
		return
	}
	key := dibs.Key{Namespace: leaseapi.Namespace}
	if q.Namespace != nil {
		key.Namespace = *q.Namespace
	}
	if p := (&call{s, by}).place(&key); p != nil {
		refuse(w, r, p)
		return
	}
	if q.Namespace != nil || !by.Free {
		q.Namespace = &key.Namespace
	}
	in, p := s.inspector()
	if p != nil {
		refuse(w, r, p)
		return
	}
	q.Data = q.Data && by.May(credential.Act)
	s.open(exchangeOf(r.Context()), by, false)
	lines := bufio.NewWriterSize(s.paced(w), slow.Part)
	out := json.NewEncoder(lines)
	begun := false
	for e, err := range s.entries(r.Context(), in, q) {
		if err != nil {
			p := s.noMemory("records")
			if err != errNoMemory {
				s.failed(err)
				p = &problemStore
			}
			if !begun {
				refuse(w, r, p)
				return
			}
			panic(http.ErrAbortHandler) // the client sees that the list breaks off
		}
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/jsonl")
			w.Header().Set("Cache-Control", "no-store")
		}
		if out.Encode(leaseapi.EntryOf(&e, by.May(credential.Act))) != nil {
			return
		}
	}
	if !begun {
		w.Header().Set("Content-Type", "application/jsonl")
		w.Header().Set("Cache-Control", "no-store")
	}
	_ = lines.Flush() // a client that is gone reads nothing
}

// entries lists keys. It ends with an error if the store takes too long to the next key. Data of
// records is read for one key at a time, because a store reads many keys at once.
func (s *Server) entries(ctx context.Context, in store.Inspector, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		late := time.AfterFunc(s.limits.next, func() { cancel(errListTimeout) })
		defer late.Stop()
		data := q.Data
		q.Data = false
		for e, err := range in.List(ctx, q) {
			late.Stop()
			there := true
			if data && err == nil && e.Record != nil && e.Record.Bytes > 0 {
				there, err = s.addData(ctx, in, q, &e)
			}
			if cause := context.Cause(ctx); err != nil && cause != nil {
				err = cause
			}
			more := !there && err == nil || yield(e, err)
			exchangeOf(ctx).records.Close()
			if !more {
				return
			}
			late.Reset(s.limits.next)
		}
	}
}

var errListTimeout = errors.New("the store takes too long to the next key of a list")

// addData reads a key with the data of its record, and reports whether the query still selects
// it. The data counts before it is read.
func (s *Server) addData(ctx context.Context, in store.Inspector, q store.Query, e *store.Entry) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.StoreTimeout)
	defer cancel()
	if err := exchangeOf(ctx).records.Wait(ctx, int64(e.Record.Bytes)*dataMemory); err != nil {
		return false, errNoMemory
	}
	q.Namespace, q.Name, q.Data = &e.Key.Namespace, e.Key.Name, true
	for full, err := range in.List(ctx, q) {
		if err != nil {
			return false, err
		}
		*e, there = full, true
	}
	return there, nil
}

// inspector returns the store's Inspector.
func (s *Server) inspector() (store.Inspector, *problem) {
	in, ok := s.store.(store.Inspector)
	if !ok {
		return nil, problemNotFound.with("The store cannot list its keys.")
	}
	return in, nil
}

// order returns the handler of what an operator does to a key. fields are the fields of the
// call beside the key.
func (s *Server) order(do func(context.Context, store.Inspector, leaseapi.Order) (int, error), fields ...string) http.HandlerFunc {
	return s.guarded(credential.Act, false, func(c *call, ctx context.Context, body []byte) ([]byte, *problem) {
		o, err := leaseapi.ReadOrder(body, fields...)
		if err != nil {
			return nil, problemInvalid.with(err.Error() + ".")
		}
		if p := c.place(&o.Key); p != nil {
			return nil, p
		}
		in, p := s.inspector()
		if p != nil {
			return nil, p
		}
		ctx, cancel := context.WithTimeout(ctx, s.config.StoreTimeout)
		defer cancel()
		n, err := do(ctx, in, o)
		switch {
		case errors.Is(err, dibs.ErrFull):
			return nil, problemTooLarge.with(err.Error() + ".")
		case err != nil:
			s.failed(err)
			return nil, &problemStore
		}
		s.log.Info("a key was changed by hand", "key", o.Key, "credential", c.by.Name, "id", o.ID, "done", n)
		return leaseapi.WriteDone(n), nil
	})
}

func release(ctx context.Context, in store.Inspector, o leaseapi.Order) (int, error) {
	return in.ForceRelease(ctx, o.Key, o.ID)
}

func forget(ctx context.Context, in store.Inspector, o leaseapi.Order) (int, error) {
	done, err := in.Forget(ctx, o.Key, o.ID)
	return count(done), err
}

func resolve(ctx context.Context, in store.Inspector, o leaseapi.Order) (int, error) {
	done, err := in.Resolve(ctx, o.Key, o.ID, o.Data, o.Retention)
	return count(done), err
}

func count(done bool) int {
	if done {
		return 1
	}
	return 0
}

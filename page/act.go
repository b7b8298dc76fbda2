package page

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/store"
)

// order is what a person does to a key.
type order struct {
	Link   string // of the key
	ID     string // of the attempt, or of the record to forget
	Status int    // resolve: of the answer
	Type   string // resolve: its Content-Type
	Body   string // resolve: its body

	key store.Key
}

// acting calls do for a viewer who may act. It answers with how much do has done and logs it.
func (h *Handler) acting(do func(context.Context, *order) (int, error)) http.HandlerFunc {
	return h.looking(func(w http.ResponseWriter, r *http.Request, v *Viewer) {
		if !v.Act {
			fail(w, http.StatusForbidden, "You may look, and not act.")
			return
		}
		var o order
		if !read(w, r, maxForm, &o) {
			return
		}
		values, err := url.ParseQuery(o.Link)
		if err == nil {
			o.key, err = keyOf(values)
		}
		if err != nil || h.in == nil || !h.sees(v, o.key) {
			fail(w, http.StatusNotFound, "There is no such key.")
			return
		}
		if o.ID == "" { // the key may have changed since the page showed it
			fail(w, http.StatusUnprocessableEntity, "Name the attempt or the record by its ID.")
			return
		}
		// The browser may go away. What it asked for is done.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), storeLimit)
		defer cancel()
		done, err := do(ctx, &o)
		var refused refusedError
		switch {
		case errors.As(err, &refused):
			fail(w, http.StatusUnprocessableEntity, string(refused))
		case err != nil:
			h.failed(w, err)
		default:
			h.options.Logger.Info("a key was changed by hand", "action", r.URL.Path, "key", o.key, "id", o.ID, "viewer", v.Name, "remote", r.RemoteAddr, "done", done)
			answer(w, http.StatusOK, map[string]int{"done": done})
		}
	})
}

// refusedError is a sentence that says why an order makes no sense.
type refusedError string

func (e refusedError) Error() string { return string(e) }

// release ends the attempt with the ID. An unknown outcome runs again.
func (h *Handler) release(ctx context.Context, o *order) (int, error) {
	return h.in.ForceRelease(ctx, o.key, o.ID)
}

// forget deletes the record or the abandoned or unknown attempt that the ID names.
func (h *Handler) forget(ctx context.Context, o *order) (int, error) {
	done, err := h.in.Forget(ctx, o.key, o.ID)
	return count(done), err
}

// resolve gives an unknown outcome the answer that retries get.
func (h *Handler) resolve(ctx context.Context, o *order) (int, error) {
	if _, isHTTP := idempotency.KeyPart(o.key.Name); !isHTTP {
		return 0, refusedError("Only a request's key has an answer. Let the key run again, or forget it.")
	}
	if o.Status < 200 || o.Status > 599 {
		return 0, refusedError("Name a status from 200 to 599.")
	}
	a := &idempotency.Answer{Status: o.Status, Header: http.Header{}, Body: []byte(o.Body)}
	if o.Type != "" {
		a.Header.Set("Content-Type", o.Type)
	}
	data, err := idempotency.EncodeAnswer(o.key.Name, a)
	if err != nil {
		return 0, refusedError("The answer cannot be stored: " + err.Error() + ".")
	}
	if h.options.Encrypt != nil {
		if data, err = h.options.Encrypt(o.key, idempotency.DefaultRetention, data); err != nil {
			return 0, refusedError("The answer cannot be stored: " + err.Error() + ".")
		}
	}
	done, err := h.in.Resolve(ctx, o.key, o.ID, data, idempotency.DefaultRetention)
	return count(done), err
}

func count(done bool) int {
	if done {
		return 1
	}
	return 0
}

package page

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
)

const (
	// hits is how many keys a search finds.
	hits = 50
	// maxAnswer is how long a record can be whose status is read, in bytes.
	maxAnswer = 8 << 20
)

// urn begins the URI that names an attempt in a problem document.
const urn = "urn:dibs:claim:"

// live are the conditions of keys that are found first, because they are few.
var live = []store.Condition{store.ConditionHeld, store.ConditionUnknown, store.ConditionWaiting, store.ConditionAbandoned}

// find serves a search: a key or a part of it, an ID, or a digest.
func (h *Handler) find(w http.ResponseWriter, r *http.Request, v *Viewer) {
	text := strings.TrimSpace(r.URL.Query().Get("q"))
	if text == "" || len(text) > 4*store.MaxKey {
		fail(w, http.StatusBadRequest, "Search for a key, a part of it, an ID, or the digest from a log line.")
		return
	}
	if h.in == nil {
		fail(w, http.StatusNotFound, "The store cannot list its keys.")
		return
	}
	select { // one at a time, because it may read all keys
	case h.search <- struct{}{}:
		defer func() { <-h.search }()
	case <-r.Context().Done():
		return
	}
	ctx, cancel := limited(r)
	defer cancel()
	var answered struct {
		Keys []line `json:"keys"`
		More bool   `json:"more"` // there may be more
	}
	answered.Keys = []line{}
	err := h.matches(ctx, v, text, func(e store.Entry) bool {
		l := lineOf(&survey.Key{Entry: e}, shown)
		if slices.ContainsFunc(answered.Keys, func(o line) bool { return o.Link == l.Link }) {
			return true
		}
		if answered.More = len(answered.Keys) == hits; answered.More {
			return false
		}
		answered.Keys = append(answered.Keys, l)
		return true
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		answered.More = true
	case err != nil:
		h.failed(w, err)
		return
	}
	answer(w, http.StatusOK, answered)
}

// matches yields keys that a text finds until yield returns false: first the key of that name, then
// those that are live, then all.
func (h *Handler) matches(ctx context.Context, v *Viewer, text string, yield func(store.Entry) bool) error {
	id := strings.TrimPrefix(text, urn)
	match := func(k store.Key) bool {
		return strings.Contains(k.Name, text) || k.Digest() == text || strings.Contains(escape(k.Name), text)
	}
	ns := h.namespace(v)
	queries := []store.Query{{Namespace: ns, Match: match, Conditions: live, Places: true}}
	if isID(id) {
		queries = append(queries, store.Query{Namespace: ns, ID: id, Conditions: live, Places: true}, store.Query{Namespace: ns, ID: id, Places: true})
	}
	queries = append(queries, store.Query{Namespace: ns, Match: match, Places: true})
	if len(text) <= store.MaxKey {
		queries = slices.Insert(queries, 0, store.Query{Namespace: ns, Name: text, Places: true})
		if ns == nil {
			none := ""
			queries[0].Namespace = &none // the store looks that one up
		}
	}
	for _, q := range queries {
		for e, err := range h.in.List(ctx, q) {
			if err != nil {
				if cause := context.Cause(ctx); cause != nil {
					return cause
				}
				return err
			}
			if h.sees(v, e.Key) && !yield(e) {
				return nil
			}
		}
	}
	return nil
}

// isID reports whether s has the form of an attempt's ID.
func isID(s string) bool {
	return len(s) == 16 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// key serves what the store knows of one key.
func (h *Handler) key(w http.ResponseWriter, r *http.Request, v *Viewer) {
	k, err := keyOf(r.URL.Query())
	if err != nil || h.in == nil || !h.sees(v, k) {
		fail(w, http.StatusNotFound, "There is no such key.")
		return
	}
	ctx, cancel := limited(r)
	defer cancel()
	e, err := h.entry(ctx, k, false)
	if err != nil {
		h.failed(w, err)
		return
	}
	found := survey.Key{Entry: e}
	if report, err := h.survey(v).Look(ctx, fresh); err == nil {
		for _, o := range slices.Concat(report.Waits, report.Unknown) {
			if o.Entry.Key == k {
				found.Seen, found.Waited = o.Seen, o.Waited
			}
		}
	}
	l := lineOf(&found, len(e.Places))
	if e.Condition == "" {
		l.State = "free"
	}
	if l.HTTP && e.Record != nil && e.Record.Bytes <= maxAnswer {
		if e, err = h.entry(ctx, k, true); err == nil && e.Record != nil {
			if a, err := idempotency.DecodeAnswer(e.Record.Data, maxAnswer); err == nil {
				l.Status = a.Status
			}
		}
	}
	answer(w, http.StatusOK, l)
}

// entry returns what the store knows of a key. Its Condition is "" if that is nothing.
func (h *Handler) entry(ctx context.Context, k store.Key, data bool) (store.Entry, error) {
	for e, err := range h.in.List(ctx, store.Query{Namespace: &k.Namespace, Name: k.Name, Places: true, Data: data}) {
		return e, err
	}
	return store.Entry{Key: k}, nil
}

// failed answers that the store fails.
func (h *Handler) failed(w http.ResponseWriter, err error) {
	h.outage.Failed(err)
	fail(w, http.StatusServiceUnavailable, "The store does not answer.")
}

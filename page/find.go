package page

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
)

const (
	// hits is how many keys a search finds.
	hits = 50
	// namespaces is how many namespaces a search looks a whole key up in.
	namespaces = 100
	// searchLimit is how long a search goes through all keys.
	searchLimit = 30 * time.Second
	// progress is how often such a search says how far it is.
	progress = 500 * time.Millisecond
)

// urn begins the URI that names an attempt in a problem document.
const urn = "urn:dibs:claim:"

// live are the conditions of the keys that are found without going through those that are done.
var live = []store.Condition{store.ConditionHeld, store.ConditionUnknown, store.ConditionWaiting}

// find serves a search for a key or a part of it, an ID, or a digest. Without all, it looks for the
// whole key, and among the keys that are on the page or could be. With all it goes through all keys.
func (h *Handler) find(w http.ResponseWriter, r *http.Request, v *Viewer) {
	text := strings.TrimSpace(r.URL.Query().Get("q"))
	switch {
	case text == "" || len(text) > 4*store.MaxKey:
		fail(w, http.StatusBadRequest, "Search for a key, a part of it, an ID, or the digest from a log line.")
	case h.in == nil:
		fail(w, http.StatusNotFound, "The store cannot list its keys.")
	case r.URL.Query().Get("all") == "true":
		h.findAll(w, r, v, text)
	default:
		h.findLive(w, r, v, text)
	}
}

// findLive answers with the key of that name, and with keys that others wait for, that are held for
// long or whose outcome is unknown.
func (h *Handler) findLive(w http.ResponseWriter, r *http.Request, v *Viewer, text string) {
	ctx, cancel := limited(r)
	defer cancel()
	ns := h.namespace(v)
	var queries []store.Query
	if len(text) <= store.MaxKey {
		for _, in := range h.namespaces(ctx, v, ns) {
			queries = append(queries, store.Query{Namespace: &in, Name: text, Places: true})
		}
	}
	queries = append(queries, store.Query{Namespace: ns, Match: matches(text), Conditions: live, HeldFor: survey.Long, Places: true})
	if id := strings.TrimPrefix(text, urn); isID(id) {
		queries = append(queries, store.Query{Namespace: ns, ID: id, Conditions: live, HeldFor: survey.Long, Places: true})
	}
	answered := struct {
		Keys []line `json:"keys"`
		More bool   `json:"more"` // there may be more of these
	}{Keys: []line{}}
	var keys []store.Entry
	err := h.each(ctx, v, queries, func(e store.Entry) bool {
		if answered.More = len(keys) == hits; answered.More {
			return false
		}
		keys = append(keys, e)
		return true
	})
	for i := range keys {
		answered.Keys = append(answered.Keys, h.hit(ctx, &keys[i]))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		answered.More = true
	case err != nil:
		h.failed(w, err)
		return
	}
	answer(w, http.StatusOK, answered)
}

// namespaces returns those that a whole key is looked up in: ns, or those that have a live key.
func (h *Handler) namespaces(ctx context.Context, v *Viewer, ns *string) []string {
	if ns != nil {
		return []string{*ns}
	}
	all := []string{""}
	if report, err := h.options.Survey.Look(ctx, survey.MetricsAge); err == nil {
		for _, in := range slices.Sorted(maps.Keys(report.Namespaces)) {
			if in != "" && len(all) < namespaces {
				all = append(all, in)
			}
		}
	}
	return all
}

// found is a line of the answer to a search through all keys.
type found struct {
	Key    *line  `json:"key,omitempty"`
	Looked int64  `json:"looked"`          // how many keys were looked at so far
	End    string `json:"end,omitempty"`   // all: of them; many: found enough; late: stopped after searchLimit
	Error  string `json:"error,omitempty"` // the search has failed
}

// findAll goes through all keys, until it has found enough or searchLimit is over. It answers with JSON
// lines: each key that it finds, how far it is, and how it ended. One search runs at a time.
func (h *Handler) findAll(w http.ResponseWriter, r *http.Request, v *Viewer, text string) {
	select {
	case h.search <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), searchLimit)
	defer cancel()
	var looked atomic.Int64
	counted := func(match func(store.Key) bool) func(store.Key) bool {
		return func(k store.Key) bool {
			looked.Add(1)
			return match(k)
		}
	}
	ns := h.namespace(v)
	queries := []store.Query{{Namespace: ns, Match: counted(matches(text)), Places: true}}
	if id := strings.TrimPrefix(text, urn); isID(id) {
		queries = append(queries, store.Query{Namespace: ns, ID: id, Match: counted(func(store.Key) bool { return true }), Places: true})
	}
	keys, ended := make(chan store.Entry), make(chan error, 1)
	go func() {
		defer func() { <-h.search }()
		ended <- h.each(ctx, v, queries, func(e store.Entry) bool {
			select {
			case keys <- e:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("X-Accel-Buffering", "no")
	out, into := http.NewResponseController(w), json.NewEncoder(w)
	say := func(f found) bool {
		f.Looked = looked.Load()
		_ = out.SetWriteDeadline(time.Now().Add(storeLimit))
		return into.Encode(f) == nil && out.Flush() == nil
	}
	tick := time.NewTicker(progress)
	defer tick.Stop()
	for n := 0; ; {
		select {
		case e := <-keys:
			if n++; n > hits {
				say(found{End: "many"})
				return
			}
			l := h.hit(ctx, &e)
			if !say(found{Key: &l}) {
				return
			}
		case <-tick.C:
			if !say(found{}) {
				return
			}
		case err := <-ended:
			switch {
			case ctx.Err() != nil:
				say(found{End: "late"})
			case err != nil:
				h.outage.Failed(err)
				say(found{Error: "The store does not answer."})
			default:
				say(found{End: "all"})
			}
			return
		}
	}
}

// each yields the keys of queries that the viewer may see, each once, until yield returns false.
func (h *Handler) each(ctx context.Context, v *Viewer, queries []store.Query, yield func(store.Entry) bool) error {
	seen := map[store.Key]bool{}
	for _, q := range queries {
		for e, err := range h.in.List(ctx, q) {
			if err != nil {
				if cause := context.Cause(ctx); cause != nil {
					return cause
				}
				return err
			}
			if seen[e.Key] || !h.sees(v, e.Key) {
				continue
			}
			seen[e.Key] = true
			if !yield(e) {
				return nil
			}
		}
	}
	return nil
}

// hit returns the line of a key that a search has found, with the status of its answer.
func (h *Handler) hit(ctx context.Context, e *store.Entry) line {
	l := h.line(ctx, e, shown, survey.MetricsAge)
	if e.Record != nil && (l.HTTP || e.Record.Bytes <= runrecord.Max) {
		h.record(ctx, e, &l)
		l.Body, l.NotKept = nil, ""
	}
	return l
}

// digestLen is how long a digest is.
var digestLen = len(store.Key{}.Digest())

// matches returns whether a key has a text: as a part of its name, as it is or as the page shows it, or as
// its digest.
func matches(text string) func(store.Key) bool {
	escaped, digest := strings.Contains(text, `\`), len(text) == digestLen
	return func(k store.Key) bool {
		return strings.Contains(k.Name, text) || digest && k.Digest() == text || escaped && strings.Contains(escape(k.Name), text)
	}
}

// isID reports whether s has the form of an attempt's ID.
func isID(s string) bool {
	return len(s) == 16 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

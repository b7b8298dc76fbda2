package page

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/record"
	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
)

// maxAnswer is how long a record can be whose status and body are read, in bytes.
const maxAnswer = 8 << 20

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
	l := h.line(ctx, &e, len(e.Places), fresh)
	if e.Condition == "" {
		l.State = "free"
	}
	bodies := h.options.ShowBodies && v.Act
	if e.Record != nil && (l.HTTP || bodies || e.Record.Bytes <= runrecord.Max) {
		h.record(ctx, &e, &l)
		if !bodies {
			l.Body = nil
		}
		if !v.Act {
			l.NotKept = "" // an error's text may have what the result had
		}
	}
	answer(w, http.StatusOK, l)
}

// line returns the line of a key, with how long its waiters had been seen to wait by a look that is not
// older than age.
func (h *Handler) line(ctx context.Context, e *store.Entry, places int, age time.Duration) line {
	found := survey.Key{Entry: *e}
	if report, err := h.options.Survey.Look(ctx, age); err == nil {
		for _, o := range slices.Concat(report.Waits, report.Unknown) {
			if o.Entry.Key == e.Key {
				found = o.At(*e)
			}
		}
	}
	return lineOf(&found, places)
}

// record reads a key's record: what it holds, and the body.
// Who may look sees the host and the command of a run, because every viewer saw them while it held the key.
func (h *Handler) record(ctx context.Context, e *store.Entry, l *line) {
	if e.Record.Bytes > maxAnswer {
		l.Body = &body{Bytes: e.Record.Bytes, Hidden: "It is longer than 8 MiB."}
		return
	}
	full, err := h.entry(ctx, e.Key, true)
	if err != nil || full.Record == nil {
		return
	}
	data := full.Record.Data
	l.Content = record.Read(e.Key, data, maxAnswer)
	if r := l.Run; r != nil {
		r.Command, r.Host, r.Began = escape(r.Command), escape(r.Host), r.Began.UTC()
	}
	switch {
	case l.EncryptedWith != "":
		l.Body = &body{Bytes: len(data), Hidden: "It is encrypted."}
	case l.HTTP && l.Answer == nil:
		l.Body = &body{Bytes: len(data), Hidden: "It is not an answer that this version can read."}
	default:
		l.Body = bodyOf(l.Answer, data)
	}
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

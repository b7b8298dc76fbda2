package page

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
)

// news is one message to an open page.
type news struct {
	Viewer    string          `json:"viewer"`
	Act       bool            `json:"act"`
	SignedIn  bool            `json:"signed_in"`           // by the form
	Store     string          `json:"store,omitempty"`     // its name
	Namespace *string         `json:"namespace,omitempty"` // the only one that the page shows
	StoreUS   int64           `json:"store_us"`
	Error     string          `json:"error,omitempty"`
	Finding   *finding        `json:"finding,omitempty"` // the worst
	Checked   bool            `json:"checked"`
	Findings  int             `json:"findings"`
	Traffic   *happened       `json:"traffic,omitempty"`
	Encrypts  bool            `json:"encrypts"`           // Options.Encrypt
	Counting  bool            `json:"counting,omitempty"` // the lists are still to come
	Age       int64           `json:"age_ms"`             // of the lists
	Lists     json.RawMessage `json:"lists,omitempty"`    // if the page has older ones
}

// lists are what a survey has found.
type lists struct {
	Long      int    `json:"long"`    // keys that are held for long
	LongMS    int64  `json:"long_ms"` // how long that is
	Waiters   int    `json:"waiters"`
	Unknown   int    `json:"unknown"`
	Waits     []line `json:"waits"`
	Undecided []line `json:"undecided"`
}

// listed are the lists of a report as all pages get them that see one namespace, or all.
type listed struct {
	of   *survey.Report
	text json.RawMessage
}

// listsOf returns the lists of a report.
func (h *Handler) listsOf(r *survey.Report, namespace *string) json.RawMessage {
	name := "\x00"
	if namespace != nil {
		name = *namespace
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if last := h.lists[name]; last == nil || last.of != r {
		c, waits, unknown := r.Of(namespace)
		l := lists{Long: c.Long, LongMS: survey.Long.Milliseconds(), Waiters: c.Waiters, Unknown: c.Unknown, Waits: linesOf(waits), Undecided: linesOf(unknown)}
		h.lists[name] = &listed{r, encoded(l)}
	}
	return h.lists[name].text
}

// encoded returns a JSON text of texts and numbers.
func encoded(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// finding is a finding of the doctor.
type finding struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`
	What     string `json:"what"`
	Cure     string `json:"cure"`
}

// events serves server-sent events: news at once, and then with each beat.
func (h *Handler) events(w http.ResponseWriter, r *http.Request, v *Viewer) {
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
	default:
		w.Header().Set("Retry-After", "10")
		fail(w, http.StatusServiceUnavailable, "Too many pages are open.")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // because nginx would collect the messages
	out := http.NewResponseController(w)
	tick := time.NewTicker(beat)
	defer tick.Stop()
	var sent *survey.Report // whose lists the page has
	for {
		text := encoded(h.news(r, v, &sent))
		// A browser that reads nothing ends the stream.
		_ = out.SetWriteDeadline(time.Now().Add(4 * storeLimit))
		if _, err := w.Write([]byte("data: " + string(text) + "\n\n")); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-h.closed:
			return
		}
		// A credential can be taken away while the page is open.
		if v = h.options.Viewer(r); v == nil {
			return
		}
	}
}

// news returns what an open page shows. It has lists if they are not of the report that was sent.
func (h *Handler) news(r *http.Request, v *Viewer, sent **survey.Report) *news {
	n := &news{Viewer: v.Name, Act: v.Act, SignedIn: h.options.SignIn != nil && Session(r) != "", Store: h.options.StoreName, Namespace: h.namespace(v), Encrypts: h.options.Encrypt != nil}
	began := time.Now()
	took, found, err := h.health.ask(h.store)
	n.StoreUS, n.Findings = took.Microseconds(), len(found)
	_, n.Checked = h.store.(store.Checker)
	if len(found) > 0 {
		f := found[0]
		n.Finding = &finding{f.Name, string(f.Severity), f.What, f.Cure}
	}
	if t := h.options.Traffic; t != nil {
		only := v.Namespace
		if h.options.Namespace != nil {
			only = nil // the whole program is for it
		}
		all := t.read(time.Now(), only)
		n.Traffic = &all
	}
	if err == nil && h.in != nil {
		var report *survey.Report
		report, err = h.options.Survey.Look(r.Context(), fresh)
		switch {
		case errors.Is(err, survey.ErrCounting):
			n.Counting, err = true, nil
		case err == nil:
			n.Age = time.Since(report.At).Milliseconds()
			if *sent != report {
				n.Lists, *sent = h.listsOf(report, n.Namespace), report
			}
		}
	}
	if err == nil {
		h.outage.AnsweredSince(began)
	} else {
		h.outage.FailedCheck(err)
		n.Error = "The store does not answer."
	}
	return n
}

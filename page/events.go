package page

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
)

// news is one message to an open page.
type news struct {
	Viewer    string                `json:"viewer"`
	Act       bool                  `json:"act"`
	SignedIn  bool                  `json:"signed_in"`           // by the form
	Store     string                `json:"store,omitempty"`     // its name
	Namespace *string               `json:"namespace,omitempty"` // the only one that the page shows
	StoreUS   int64                 `json:"store_us"`
	Error     string                `json:"error,omitempty"`
	Finding   *finding              `json:"finding,omitempty"` // the worst
	Checked   bool                  `json:"checked"`
	Findings  int                   `json:"findings"`
	Traffic   *[counts][slots]int64 `json:"traffic,omitempty"`
	Age       int64                 `json:"age_ms"` // of what follows
	Held      int                   `json:"held"`
	Waiters   int                   `json:"waiters"`
	Unknown   int                   `json:"unknown"`
	Waits     []line                `json:"waits"`
	Undecided []line                `json:"undecided"`
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
	for {
		text, err := json.Marshal(h.news(r, v))
		if err != nil {
			panic(err) // it has only texts and numbers
		}
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

// news returns what an open page shows.
func (h *Handler) news(r *http.Request, v *Viewer) *news {
	n := &news{Viewer: v.Name, Act: v.Act, SignedIn: h.options.SignIn != nil && Token(r) != "", Store: h.options.StoreName, Namespace: h.namespace(v), Waits: []line{}, Undecided: []line{}}
	began := time.Now()
	took, found, err := h.health.ask(h.store)
	n.StoreUS, n.Findings = took.Microseconds(), len(found)
	_, n.Checked = h.store.(store.Checker)
	if len(found) > 0 {
		f := found[0]
		n.Finding = &finding{f.Name, string(f.Severity), f.What, f.Cure}
	}
	if t := h.options.Traffic; t != nil {
		all := t.read(time.Now())
		n.Traffic = &all
	}
	if err == nil && h.in != nil {
		var report *survey.Report
		if report, err = h.survey(v).Look(r.Context(), beat/2); err == nil {
			n.Age = time.Since(report.At).Milliseconds()
			for _, c := range report.Namespaces {
				n.Held, n.Waiters, n.Unknown = n.Held+c.Held, n.Waiters+c.Waiters, n.Unknown+c.Unknown
			}
			n.Waits, n.Undecided = linesOf(report.Waits), linesOf(report.Unknown)
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

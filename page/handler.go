package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/slow"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
)

// Options configures a Handler. nil and the zero value mean the defaults.
type Options struct {
	// StoreName is what the page calls the store, such as its address without a password: a wrong
	// store looks like one where nothing happens. Default: no name.
	StoreName string
	// Namespace, if not nil, is the only one that the page shows. Default: all.
	Namespace *string
	// Viewer returns who sends a request, or nil if nobody who may look: the answer is 401.
	// Default: requests from this host to this host may look and act, and no others.
	Viewer func(*http.Request) *Viewer
	// SignIn returns the value of the cookie of the viewer with a token; "" if the token is wrong. The
	// value should not be the token, because a browser sends a cookie to every port of a host. Viewer
	// finds it with Session. Default: the page has no form for a token.
	SignIn func(token string) string
	// ShowBodies shows the bodies of records to viewers who may act. Default: nobody sees them.
	ShowBodies bool
	// Traffic counts what the page shows of requests. Default: it shows none.
	Traffic *Traffic
	// Survey is what the program's metrics are taken from, too, so that they and the page agree how long
	// a caller has waited. It is of Namespace, or of all. Default: the page has one of its own.
	Survey *survey.Survey
	// Encrypt returns what is stored of an answer that a person gives to a request's key. The page shows
	// its error. Default: answers are not encrypted.
	Encrypt func(key store.Key, retention time.Duration, answer []byte) ([]byte, error)
	// Logger gets a line for each action. Default: slog.Default().
	Logger *slog.Logger
}

// Viewer is who looks at the page.
type Viewer struct {
	Name      string  // for the log
	Namespace *string // the only one that the viewer may see; nil: all
	Act       bool    // may release, forget and resolve keys
}

const (
	// beat is how often a page that is open gets news.
	beat = 2 * time.Second
	// fresh is how old news can be that another page has got.
	fresh = beat - beat/10
	// maxStreams is how many pages can be open.
	maxStreams = 100
	// maxForm is how long the body of a call can be, in bytes, and maxSignIn that of one without a
	// credential.
	maxForm, maxSignIn = 1 << 20, 8 << 10
	// maxPause is how long a browser may pause while it sends a body, and the longest that 5 kB take.
	maxPause = 10 * time.Second
	// storeLimit is how long the store can take to answer.
	storeLimit = 8 * time.Second
)

// Handler serves the page. Make one with New.
type Handler struct {
	http.Handler
	options Options
	store   store.Store
	in      store.Inspector // nil: the store cannot list
	health  health
	outage  *outage.Log
	streams chan struct{} // one for each open page
	search  chan struct{} // one for each search
	closed  chan struct{}
	close   sync.Once

	mu    sync.Mutex
	lists map[string]*listed // under mu: by namespace; "\x00" is all
}

//go:embed page.html
var source []byte

// policy is the Content-Security-Policy: the style and the script of the file and no others, and
// requests to the page's own server only.
var policy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src " +
	hashOf("style") + "; script-src " + hashOf("script")

// challenge is what HTTP asks for. A browser shows no form of its own for it.
const challenge = `Bearer realm="dibs"`

// hashOf returns the source of an inline element.
func hashOf(element string) string {
	_, text, _ := bytes.Cut(source, []byte("<"+element+">"))
	text, _, _ = bytes.Cut(text, []byte("</"+element+">"))
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// New returns the page of a store. If the store is not a store.Inspector, the page shows the
// store's health only.
func New(under store.Store, o *Options) *Handler {
	h := &Handler{
		store: under, streams: make(chan struct{}, maxStreams), search: make(chan struct{}, 1),
		closed: make(chan struct{}), lists: map[string]*listed{},
	}
	if o != nil {
		h.options = *o
	}
	h.options.Logger = cmp.Or(h.options.Logger, slog.Default())
	h.outage = outage.New(h.options.Logger, "requests")
	if h.options.Viewer == nil {
		h.options.Viewer = OnThisHost
	}
	h.in, _ = under.(store.Inspector)
	if h.options.Survey == nil {
		h.options.Survey = survey.New(h.in, h.options.Namespace)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.page)
	mux.HandleFunc("GET /page/events", h.looking(h.events))
	mux.HandleFunc("GET /page/search", h.looking(h.find))
	mux.HandleFunc("GET /page/key", h.looking(h.key))
	mux.HandleFunc("POST /page/sign-in", h.signIn)
	mux.HandleFunc("POST /page/sign-out", h.signOut)
	mux.HandleFunc("POST /page/release", h.acting(h.release))
	mux.HandleFunc("POST /page/forget", h.acting(h.forget))
	mux.HandleFunc("POST /page/resolve", h.acting(h.resolve))
	own := http.NewCrossOriginProtection()
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := w.Header()
		f.Set("Content-Security-Policy", policy)
		f.Set("Cache-Control", "no-store")
		f.Set("X-Content-Type-Options", "nosniff")
		f.Set("Referrer-Policy", "no-referrer")
		f.Set("Cross-Origin-Resource-Policy", "same-origin")
		// A GET, too: a page of another site could make a browser search all keys again and again.
		asPost := *r
		if asPost.Method = http.MethodPost; r.URL.Path != "/" && own.Check(&asPost) != nil {
			fail(w, http.StatusForbidden, "A page of another origin may not call this one.")
			return
		}
		mux.ServeHTTP(w, r)
	})
	return h
}

// Close ends the updates of all open pages, so that a server can shut down. It returns nil.
func (h *Handler) Close() error {
	h.close.Do(func() { close(h.closed) })
	return nil
}

// page serves the file. It has no secret, so somebody without a credential gets it too, with 401,
// and it asks for one.
func (h *Handler) page(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if h.options.Viewer(r) == nil {
		w.Header().Set("WWW-Authenticate", challenge)
		w.WriteHeader(http.StatusUnauthorized)
	}
	_, _ = w.Write(source)
}

// looking calls serve for a viewer.
func (h *Handler) looking(serve func(http.ResponseWriter, *http.Request, *Viewer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := h.options.Viewer(r)
		if v == nil {
			w.Header().Set("WWW-Authenticate", challenge)
		}
		switch {
		case v == nil && h.options.SignIn == nil:
			fail(w, http.StatusUnauthorized, "Only a browser on the server's own host may look. The server's credentials open the page to others.")
		case v == nil:
			answer(w, http.StatusUnauthorized, map[string]any{"error": "Sign in with a token that may look.", "sign_in": true})
		case h.options.Namespace != nil && v.Namespace != nil && *h.options.Namespace != *v.Namespace:
			fail(w, http.StatusForbidden, "The credential is for another namespace than the page.")
		default:
			serve(w, r, v)
		}
	}
}

// namespace returns the only namespace that the viewer may see; nil: all.
func (h *Handler) namespace(v *Viewer) *string { return cmp.Or(h.options.Namespace, v.Namespace) }

// sees reports whether the viewer may see a key.
func (h *Handler) sees(v *Viewer, k store.Key) bool {
	for _, only := range []*string{h.options.Namespace, v.Namespace} {
		if only != nil && *only != k.Namespace {
			return false
		}
	}
	return true
}

// answer writes a JSON document.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a browser that is gone reads nothing
}

// fail answers with a sentence that the page shows.
func fail(w http.ResponseWriter, status int, sentence string) {
	answer(w, status, map[string]string{"error": sentence})
}

// read reads the JSON body of a call, of at most that many bytes. It answers if it cannot.
func read(w http.ResponseWriter, r *http.Request, most int64, into any) bool {
	if r.Header.Get("Content-Type") != "application/json" {
		fail(w, http.StatusUnsupportedMediaType, "The body must be application/json.")
		return false
	}
	in := slow.NewReader(w, r, maxPause, slow.LeastRate)
	d := json.NewDecoder(io.LimitReader(in, most))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && d.More() {
		err = errMore
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		slow.CloseAfter(w.Header())
		fail(w, http.StatusRequestTimeout, "The body did not arrive in time.")
		return false
	case err != nil:
		fail(w, http.StatusBadRequest, "The body must be one JSON object with the fields of the call.")
		return false
	}
	return true
}

var errMore = errors.New("the body has more than one JSON value")

// limited returns a context for calls of the store.
func limited(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), storeLimit)
}

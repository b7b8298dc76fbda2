package server

import (
	"io"
	"net/http"

	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
)

// Path is a path with its only method.
type Path struct {
	Method, Path string
	http.HandlerFunc
}

// Get returns a path with the method GET.
func Get(path string, h http.HandlerFunc) Path { return Path{http.MethodGet, path, h} }

// Post returns a path with the method POST.
func Post(path string, h http.HandlerFunc) Path { return Path{http.MethodPost, path, h} }

// Paths are those that every server has, but for the page.
func (s *Server) Paths() []Path {
	return []Path{
		Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { WriteText(w, http.StatusOK, "alive") }),
		Get("/readyz", s.ready),
		Get("/version", s.Guard("", func(w http.ResponseWriter, _ *http.Request, _ *credential.Credential) {
			WriteText(w, http.StatusOK, "dibs "+s.options.Version)
		})),
		Get("/metrics", s.Guard(credential.Look, func(w http.ResponseWriter, r *http.Request, by *credential.Credential) {
			s.options.Metrics(s.measured(by)).ServeHTTP(w, r)
		})),
	}
}

// Handler serves the paths that every server has, the page, and the program's own paths. Each has one
// method.
func (s *Server) Handler(own ...Path) http.Handler {
	mux := http.NewServeMux()
	for _, p := range append(s.Paths(), own...) {
		mux.HandleFunc(p.Method+" "+p.Path, p.HandlerFunc)
		mux.HandleFunc(p.Path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", p.Method)
			s.options.Refuse(w, r, http.StatusMethodNotAllowed, "It is "+p.Method+".")
		})
	}
	mux.Handle("GET /{$}", s.page)
	mux.Handle("/page/", s.page)
	mux.HandleFunc("/", s.Guard("", func(w http.ResponseWriter, r *http.Request, _ *credential.Credential) {
		s.options.Refuse(w, r, http.StatusNotFound, "")
	}))
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r
		if r.Method != http.MethodPost {
			// A page of another site could make a browser list all keys again and again.
			asPost := *r
			asPost.Method, asked = http.MethodPost, &asPost
		}
		if r.URL.Path != "/" && protection.Check(asked) != nil {
			s.options.Refuse(w, r, http.StatusForbidden, "A page of another origin may not call this server.")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// measured returns the namespace whose metrics a credential reads; nil: all. Where no credential is needed,
// and where the program has one namespace, all metrics are of it.
func (s *Server) measured(by *credential.Credential) *string {
	if by == s.local || s.options.Page.Namespace != nil {
		return nil
	}
	return by.Only()
}

// WriteText answers with a line of text.
func WriteText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}

package idempotency

import (
	"log/slog"
	"net/http"
	"sync"
)

// warnings tells the Logger once of each kind of request that cannot be served as the
// policy means it.
type warnings struct {
	anonymous, changing, keyless sync.Once
}

// scope warns of a request whose principal says too little, or too much.
func (w *warnings) scope(m *Middleware, r *http.Request, anonymous bool) {
	if anonymous {
		if !m.options.scopeIsNone() {
			w.anonymous.Do(func() {
				m.options.Logger.Warn("a request came without credentials: requests without credentials share keys",
					"scope", m.options.Scope, "method", r.Method, "path", r.URL.Path)
			})
		}
		return
	}
	if scheme := m.options.changingScheme(r); scheme != "" {
		w.changing.Do(func() {
			m.options.Logger.Warn("a retry will not be recognised: the scope has the Authorization header, which differs in every request of this scheme; "+
				"name a header that an authenticating gateway sets",
				"scheme", scheme, "scope", m.options.Scope)
		})
	}
}

// noKey warns of a request without the key that Options.Key looks for.
func (w *warnings) noKey(m *Middleware, r *http.Request) {
	w.keyless.Do(func() {
		m.options.Logger.Warn("a request came without the key that is looked for: it runs unguarded",
			slog.String("method", r.Method), slog.String("path", r.URL.Path))
	})
}

package frameworks

import (
	"fmt"
	"io"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/dibs-go/dibs/idempotency"
)

// Chi serves charges by a chi router. Only the routes of the group are guarded.
func Chi(guard *idempotency.Middleware, charge func(amount string) (string, bool)) http.Handler {
	router := chi.NewRouter()
	router.Group(func(r chi.Router) {
		r.Use(guard.Wrap)
		r.Post("/charges", func(w http.ResponseWriter, r *http.Request) {
			amount, err := io.ReadAll(r.Body)
			answer, ok := charge(string(amount))
			if err != nil || !ok {
				w.WriteHeader(http.StatusUnprocessableEntity)
				return
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, answer)
		})
	})
	return router
}

package main

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

// sessions serves PUT and GET of /sessions/{id}.
type sessions struct {
	db    *sql.DB
	table string
	// room opens a room at the video service: slow, and each costs money.
	room func(context.Context) error
	// client has the keys; nil: without dibs.
	client *dibs.Client
	// skip is the status of a request that finds another request at work.
	skip int
}

func (s *sessions) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /sessions/{id}", s.put)
	mux.HandleFunc("GET /sessions/{id}", s.get)
	return mux
}

var uuid = regexp.MustCompile("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

func (s *sessions) put(w http.ResponseWriter, r *http.Request) {
	// Two spellings of a UUID are one session, so they have to be one key.
	id := strings.ToLower(r.PathValue("id"))
	if !uuid.MatchString(id) {
		http.Error(w, "the session's name has to be a UUID", http.StatusBadRequest)
		return
	}
	// Other requests rely on this one, so it makes the session even if its client goes
	// away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Minute)
	defer cancel()
	switch err := s.ensure(ctx, id); {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, dibs.ErrHeld):
		// Another request makes it, and may still fail. 204 would say that the session is
		// there, and 202, to most clients, that nothing is left to do. 409 says: ask again.
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(s.skip)
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "not now", http.StatusServiceUnavailable)
	}
}

// ensure returns nil when the session is there. Most requests come late: a SELECT is
// enough for them, and they take no key.
func (s *sessions) ensure(ctx context.Context, id string) error {
	if there, err := s.there(ctx, id); there || err != nil {
		return err
	}
	if s.client == nil {
		return s.open(ctx, id)
	}
	return s.client.TryDo(ctx, "session "+id, func(ctx context.Context) error {
		// Between the look and the key another request may have finished.
		if there, err := s.there(ctx, id); there || err != nil {
			return err
		}
		return s.open(ctx, id)
	})
}

// open does what must be done once. A process that pauses for longer than its
// lease may do it a second time. So the row is written as if there were no key, and the
// unique index refuses a second row.
func (s *sessions) open(ctx context.Context, id string) error {
	if err := s.room(ctx); err != nil {
		return err
	}
	_, err := s.db.ExecContext(ctx, "INSERT INTO "+s.table+" (id) VALUES ($1) ON CONFLICT DO NOTHING", id)
	return err
}

func (s *sessions) there(ctx context.Context, id string) (there bool, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+s.table+" WHERE id = $1)", id).Scan(&there)
	return there, err
}

func (s *sessions) get(w http.ResponseWriter, r *http.Request) {
	switch there, err := s.there(r.Context(), strings.ToLower(r.PathValue("id"))); {
	case err != nil:
		http.Error(w, "not now", http.StatusServiceUnavailable)
	case !there:
		http.NotFound(w, r)
	default:
		w.WriteHeader(http.StatusOK)
	}
}

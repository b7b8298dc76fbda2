package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// seenWait bounds how long one question for what was seen waits at the origin.
const seenWait = 2 * time.Second

// lastWait bounds the last question for what was seen, which the origin answers at once.
const lastWait = 30 * time.Second

// Handler returns the control channel of an origin in a program of its own, for a kit in
// another process; see Remote. Whoever reaches it can make the origin answer what they
// like: serve it on an address of its own, on the loopback interface.
func (o *Origin) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /cases/{id}", func(w http.ResponseWriter, r *http.Request) {
		var s Script
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<20)).Decode(&s)
		if err == nil {
			err = o.Play(r.Context(), r.PathValue("id"), s)
		}
		said(w, err)
	})
	mux.HandleFunc("GET /cases/{id}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		ctx, cancel := context.WithTimeout(r.Context(), seenWait)
		defer cancel()
		seen, err := o.Seen(ctx, r.PathValue("id"), n)
		if err != nil {
			said(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(seen)
	})
	mux.HandleFunc("POST /cases/{id}", func(w http.ResponseWriter, r *http.Request) {
		run, err := strconv.Atoi(r.URL.Query().Get("open"))
		if err == nil {
			err = o.Open(r.Context(), r.PathValue("id"), run)
		}
		said(w, err)
	})
	mux.HandleFunc("DELETE /cases/{id}", func(w http.ResponseWriter, r *http.Request) {
		said(w, o.Forget(r.Context(), r.PathValue("id")))
	})
	return mux
}

func said(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Remote returns the Control of an origin in another process, whose Handler is served at
// the URL. The error says what is wrong with the URL.
func Remote(control string) (Control, error) {
	u, err := url.Parse(control)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("conform: %q is not the URL of an origin's control channel: it must begin with http:// or https://", control)
	}
	return &remote{url: strings.TrimSuffix(u.String(), "/") + "/cases/"}, nil
}

type remote struct{ url string }

func (r *remote) Play(ctx context.Context, id string, s Script) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return r.ask(ctx, http.MethodPut, id, text, nil)
}

func (r *remote) Seen(ctx context.Context, id string, n int) ([]Seen, error) {
	for {
		var seen []Seen
		// It answers when there are n, or after a while. An end of ctx is no failure:
		// what was seen is asked for once more, without waiting.
		err := r.ask(ctx, http.MethodGet, id+"?n="+strconv.Itoa(n), nil, &seen)
		if ctx.Err() != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWait)
			defer cancel()
			err = r.ask(last, http.MethodGet, id+"?n=0", nil, &seen)
			return seen, err
		}
		if err != nil || len(seen) >= n {
			return seen, err
		}
	}
}

func (r *remote) Open(ctx context.Context, id string, run int) error {
	return r.ask(ctx, http.MethodPost, id+"?open="+strconv.Itoa(run), nil, nil)
}

func (r *remote) Forget(ctx context.Context, id string) error {
	return r.ask(ctx, http.MethodDelete, id, nil, nil)
}

// ask sends one question; the answer goes into v, unless that is nil.
func (r *remote) ask(ctx context.Context, method, rest string, body []byte, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, r.url+rest, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("conform: the origin's control channel: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return fmt.Errorf("conform: the origin's control channel: %w", err)
	case res.StatusCode >= 300:
		return fmt.Errorf("conform: the origin's control channel answered %d %s", res.StatusCode, bytes.TrimSpace(text))
	case v == nil:
		return nil
	}
	return json.Unmarshal(text, v)
}

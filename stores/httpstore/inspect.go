package httpstore

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/store"
)

var _ store.Inspector = (*Store)(nil)

// List needs a token with the role look. Tokens of places and the data of records are only
// for one with the role act; with another one they are empty.
func (s *Store) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		fail := func(err error) { yield(store.Entry{}, fmt.Errorf("httpstore: %w", err)) }
		resp, err := s.get(ctx, leaseapi.Version+"/keys?"+parameters(q))
		if err != nil {
			yield(store.Entry{}, err)
			return
		}
		defer resp.Body.Close()
		for lines := json.NewDecoder(resp.Body); ; {
			var line leaseapi.Entry
			if err := lines.Decode(&line); err == io.EOF {
				return
			} else if err != nil {
				fail(fmt.Errorf("the list breaks off: %w", err))
				return
			}
			e, err := line.Entry()
			if err != nil {
				fail(err)
				return
			}
			if selects(q, e) && !yield(e, nil) {
				return
			}
		}
	}
}

// selects says whether an entry is one of those that the query asks for and a parameter
// cannot say.
func selects(q store.Query, e store.Entry) bool {
	return (q.Match == nil || q.Match(e.Key)) && (q.Name == "" || q.Name == e.Key.Name)
}

// parameters returns the parameters of a query. A key that is not text is looked for here.
func parameters(q store.Query) string {
	v := url.Values{}
	if q.Namespace != nil {
		v.Set("namespace", *q.Namespace)
	}
	for name, value := range map[string]string{"key": q.Name, "id": q.ID} {
		if value != "" {
			v.Set(name, value)
		}
	}
	var states []string
	for _, c := range q.Conditions {
		states = append(states, string(c))
	}
	if len(states) > 0 {
		v.Set("state", strings.Join(states, ","))
	}
	if ms := (q.HeldFor + time.Millisecond - 1).Milliseconds(); ms > 0 {
		v.Set("held_for_ms", strconv.FormatInt(ms, 10))
	}
	v.Set("places", strconv.FormatBool(q.Places))
	v.Set("data", strconv.FormatBool(q.Data))
	return v.Encode()
}

// get sends a GET to the server that answered last, and to the others if it is away. Each gets an
// equal share of the time until it answers.
func (s *Store) get(ctx context.Context, path string) (*http.Response, error) {
	var failed error
	for left := len(s.address.servers); left > 0; left-- {
		first := s.current.Load()
		within, cancel := context.WithCancel(ctx)
		r, err := http.NewRequestWithContext(within, http.MethodGet, s.server(first)+path, nil)
		if err != nil {
			cancel()
			return nil, err
		}
		s.authorize(r)
		var over *time.Timer
		if end, ok := ctx.Deadline(); ok {
			over = time.AfterFunc(time.Until(end)/time.Duration(left), cancel)
		}
		resp, err := s.client.Do(r)
		if over != nil {
			over.Stop()
		}
		switch {
		case err != nil:
			failed = unreachedError(ctx, withoutURL(err))
		case resp.StatusCode == http.StatusOK && !isPage(resp):
			resp.Body = &cancelled{resp.Body, cancel}
			return resp, nil
		default:
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // what is cut off is not a problem document
			resp.Body.Close()
			if failed, _ = refusal(resp, text); resp.StatusCode < 500 {
				cancel()
				return nil, failed
			}
		}
		cancel()
		if s.leave(ctx, first); ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

// cancelled is a body whose end ends its context.
type cancelled struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelled) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// ForceRelease needs a token with the role act.
func (s *Store) ForceRelease(ctx context.Context, key store.Key, id string) (int, error) {
	return s.order(ctx, "release", leaseapi.Order{Key: key, ID: id})
}

// Forget needs a token with the role act.
func (s *Store) Forget(ctx context.Context, key store.Key, id string) (bool, error) {
	n, err := s.order(ctx, "forget", leaseapi.Order{Key: key, ID: id})
	return n > 0, err
}

// Resolve needs a token with the role act.
func (s *Store) Resolve(ctx context.Context, key store.Key, id string, data []byte, retention time.Duration) (bool, error) {
	n, err := s.order(ctx, "resolve", leaseapi.Order{Key: key, ID: id, Data: data, Retention: retention})
	return n > 0, err
}

func (s *Store) order(ctx context.Context, verb string, o leaseapi.Order) (int, error) {
	if err := o.Key.Validate(); err != nil {
		return 0, err
	}
	body := leaseapi.WriteOrder(o)
	var err error
	for range s.address.servers {
		first := s.current.Load()
		var text []byte
		var r reach
		if text, r, err = s.post(ctx, s.server(first), "keys/"+verb, body); err == nil {
			return leaseapi.ReadDone(text)
		}
		if r == answered {
			return 0, err
		}
		s.leave(ctx, first)
		if r == unanswered || ctx.Err() != nil {
			// It is not sent to another server: if it was carried out, that one would answer
			// that there is nothing to do.
			return 0, err
		}
	}
	return 0, err
}

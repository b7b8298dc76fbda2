package retry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestTransportBodies: a body is sent again whole, or the request is not.
func TestTransportBodies(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // the limit of 1 MiB
	type source struct {
		request func(r *http.Request, text string) *watched
		tries   int
	}
	plain := func(r *http.Request, text string) *watched {
		w := &watched{Reader: strings.NewReader(text)}
		r.Body, r.GetBody, r.ContentLength = w, nil, -1
		return w
	}
	sources := map[string]struct {
		source
		text string
	}{
		"made anew": {source{func(r *http.Request, text string) *watched {
			w := &watched{Reader: strings.NewReader(text)}
			r.Body = w
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
			return w
		}, 2}, string(big) + "and more"},
		"cannot be made anew": {source{func(r *http.Request, text string) *watched {
			w := &watched{Reader: strings.NewReader(text)}
			r.Body = w
			r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("the file was removed") }
			return w
		}, 1}, "text"},
		"kept":         {source{plain, 2}, "text"},
		"kept, empty":  {source{plain, 2}, ""},
		"at the limit": {source{plain, 2}, string(big)},
		"too long":     {source{plain, 1}, string(big) + "!"},
		"none": {source{func(r *http.Request, _ string) *watched {
			r.Body, r.GetBody, r.ContentLength = nil, nil, 0
			return &watched{closed: true}
		}, 2}, ""},
		"http.NoBody": {source{func(r *http.Request, _ string) *watched {
			r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
			return &watched{closed: true}
		}, 2}, ""},
	}
	for name, test := range sources {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPost(t.Context(), t)
				sent := test.request(r, test.text)
				o := newOrigin(reply{status: 503, after: "1"}, reply{status: 201})
				res, err := newTransport(t, o, nil).RoundTrip(r)
				testkit.Must(t, err)
				if want := []int{0, 503, 201}[test.tries]; res.StatusCode != want || len(o.tries()) != test.tries {
					t.Errorf("%d after %d tries; want %d after %d", res.StatusCode, len(o.tries()), want, test.tries)
				}
				for i, a := range o.tries() {
					if a.body != test.text {
						t.Errorf("try %d sent %d bytes; want %d", i, len(a.body), len(test.text))
					}
				}
				if !sent.closed {
					t.Error("the request's body was not closed")
				}
				if o.bodies[len(o.bodies)-1].closed {
					t.Error("the answer that was returned is closed")
				}
			})
		})
	}
	t.Run("one that breaks off", func(t *testing.T) {
		r := newPost(t.Context(), t)
		w := &watched{Reader: io.MultiReader(strings.NewReader("half"), broken{})}
		r.Body, r.GetBody = w, nil
		o := newOrigin(reply{status: 201})
		if _, err := newTransport(t, o, nil).RoundTrip(r); !errors.Is(err, errCut) || len(o.tries()) != 0 || !w.closed {
			t.Errorf("%v after %d tries; closed: %v", err, len(o.tries()), w.closed)
		}
	})
}

// broken is a reader that fails.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errCut }

// TestTransportKeys: a request of an unsafe method has a key, its own or ours.
func TestTransportKeys(t *testing.T) {
	o := newOrigin(reply{status: 201})
	n := 0
	numbered := func(*http.Request) string { n++; return fmt.Sprintf(`order "%d" \`, n) }
	transport := newTransport(t, o, &retry.Options{Key: numbered})
	for _, test := range []struct {
		method string
		header http.Header
		want   string
	}{
		{http.MethodPost, nil, `"order \"1\" \\"`},
		{http.MethodPut, nil, `"order \"2\" \\"`},
		{http.MethodPatch, nil, `"order \"3\" \\"`},
		{http.MethodDelete, nil, `"order \"4\" \\"`},
		{"PURGE", nil, `"order \"5\" \\"`},
		{http.MethodGet, nil, ""},
		{"", nil, ""},
		{http.MethodHead, nil, ""},
		{http.MethodOptions, nil, ""},
		{http.MethodPost, http.Header{"Idempotency-Key": {`"mine"`}}, `"mine"`},
		{http.MethodGet, http.Header{"Idempotency-Key": {`"mine"`}}, `"mine"`},
		{http.MethodPost, http.Header{"X-Idempotency-Key": {"mine"}}, ""},
		{http.MethodPost, http.Header{"Idempotency-Key": {""}}, `"order \"6\" \\"`},
		{http.MethodPost, http.Header{"X-Idempotency-Key": {""}}, `"order \"7\" \\"`},
	} {
		r := newPost(t.Context(), t)
		r.Method = test.method
		if test.header != nil {
			r.Header = test.header.Clone()
		}
		before := r.Header.Clone()
		if _, err := transport.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		got := o.tries()
		if key := got[len(got)-1].key; key != test.want {
			t.Errorf("%s with %v has the key %s; want %s", test.method, test.header, key, test.want)
		}
		if x := got[len(got)-1].x; x && test.want != "" {
			t.Error("an empty X-Idempotency-Key, which servers refuse, was sent")
		}
		if fmt.Sprint(r.Header) != fmt.Sprint(before) {
			t.Errorf("the caller's request was changed from %v to %v", before, r.Header)
		}
	}
	for _, bad := range []string{"", strings.Repeat("k", 256), "new\nline", "clé", "\x7f"} {
		transport := newTransport(t, o, &retry.Options{Key: func(*http.Request) string { return bad }})
		r := newPost(t.Context(), t)
		w := &watched{Reader: strings.NewReader("text")}
		r.Body = w
		before := len(o.tries())
		if _, err := transport.RoundTrip(r); err == nil || !w.closed || len(o.tries()) != before {
			t.Errorf("the key %q: %v; closed: %v", bad, err, w.closed)
		}
	}
	// Random keys differ.
	keys := map[string]bool{}
	random := newTransport(t, o, nil)
	for range 100 {
		if _, err := random.RoundTrip(newPost(t.Context(), t)); err != nil {
			t.Fatal(err)
		}
		got := o.tries()
		keys[got[len(got)-1].key] = true
	}
	if len(keys) != 100 {
		t.Errorf("%d keys for 100 requests", len(keys))
	}
}

func TestTransportOptionsAreValidated(t *testing.T) {
	for name, o := range map[string]retry.Options{
		"MaxTries":   {MaxTries: -1},
		"Backoff":    {Backoff: -1},
		"MaxBackoff": {Backoff: time.Second, MaxBackoff: time.Millisecond},
		"Budget":     {Budget: -0.1},
		"MaxBody":    {MaxBody: -1},
	} {
		if _, err := retry.New(&o); err == nil || !strings.Contains(err.Error(), "Options."+strings.TrimPrefix(name, "Max")) && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := retry.New(&retry.Options{Budget: math.NaN()}); err == nil || !strings.Contains(err.Error(), "Options.Budget") {
		t.Errorf("a budget that is not a number: %v", err)
	}
	// A long backoff lifts the limit with it.
	if _, err := retry.New(&retry.Options{Backoff: time.Hour}); err != nil {
		t.Error(err)
	}
}

// TestTransportSendsOnceWhatCannotBeSent: a request that HTTP cannot carry is refused at once.
func TestTransportSendsOnceWhatCannotBeSent(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"a value with a line break": func(r *http.Request) { r.Header["X-A"] = []string{"a\nb"} },
		"a name with a space":       func(r *http.Request) { r.Header["X A"] = []string{"a"} },
		"a method with a space":     func(r *http.Request) { r.Method = "PO ST" },
		"a trailer with a NUL":      func(r *http.Request) { r.Trailer = http.Header{"X-A": {"a\x00"}} },
		"no host":                   func(r *http.Request) { r.URL.Host = "" },
	} {
		sent := 0
		tr, err := retry.New(&retry.Options{Base: tripper(func(r *http.Request) (*http.Response, error) {
			sent++
			return http.DefaultTransport.RoundTrip(r)
		})})
		testkit.Must(t, err)
		r := testkit.Request(t.Context(), t, http.MethodPost, "http://127.0.0.1:1/", nil)
		change(r)
		if _, err := tr.RoundTrip(r); err == nil || sent != 1 {
			t.Errorf("%s: sent %d times, %v", name, sent, err)
		}
	}
}

// sendingCase is a case of clients/testdata/sending.json, which says what the fields mean.
type sendingCase struct {
	Name     string
	Method   string
	Header   map[string]string
	Key      *string
	Tries    int
	Deadline float64
	Answers  []scripted
	Sent     int
	Pauses   [][2]float64
	Status   int
	Fails    bool
	Field    json.RawMessage // a text, null, or left out
}

// scripted is an answer of a case.
type scripted struct {
	Status         int
	RetryAfter     *string  `json:"retry_after"`
	RetryAfterDate *float64 `json:"retry_after_date"`
	Clock          float64
	Replayed       bool
	Reset          bool
	Cut            bool
}

// TestTransportSends: the Transport passes the table of cases that all clients pass.
func TestTransportSends(t *testing.T) {
	var table struct{ Cases []sendingCase }
	testkit.Must(t, json.Unmarshal(testkit.ReadFile(t, "../../clients/testdata/sending.json"), &table))
	if len(table.Cases) == 0 {
		t.Fatal("the table is empty")
	}
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(t) })
		})
	}
}

func (c *sendingCase) run(t *testing.T) {
	o := newOrigin(c.replies()...)
	options := retry.Options{MaxTries: c.Tries}
	if c.Key != nil {
		options.Key = func(*http.Request) string { return *c.Key }
	}
	ctx := t.Context()
	if c.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, seconds(c.Deadline))
		defer cancel()
	}
	r := newPost(ctx, t)
	if c.Method != "" {
		r.Method = c.Method
	}
	for name, value := range c.Header {
		r.Header.Set(name, value)
	}
	res, err := newTransport(t, o, &options).RoundTrip(r)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(res.Body)
		testkit.Check(t, res.Body.Close())
	}
	switch {
	case c.Fails && err == nil:
		t.Errorf("answered %d; want an error", res.StatusCode)
	case !c.Fails && (err != nil || res.StatusCode != c.Status || string(text) != "text"):
		t.Errorf("%v, %q, %v; want %d and its text", res, text, err, c.Status)
	}
	for _, body := range o.bodies {
		if !body.closed {
			t.Error("the body of an answer was not closed")
		}
	}
	c.check(t, o.tries())
}

// replies are what the origin answers.
func (c *sendingCase) replies() (all []reply) {
	for _, a := range c.Answers {
		r := reply{status: a.Status, replayed: a.Replayed, cut: a.Cut, date: time.Now().Add(seconds(a.Clock))}
		if a.RetryAfter != nil {
			r.after = *a.RetryAfter
		}
		if a.RetryAfterDate != nil {
			r.afterDate = seconds(*a.RetryAfterDate)
		}
		if a.Reset {
			r = reply{err: errCut}
		}
		all = append(all, r)
	}
	return all
}

// check checks what the origin got.
func (c *sendingCase) check(t *testing.T, got []received) {
	if len(got) != c.Sent {
		t.Fatalf("sent %d times; want %d", len(got), c.Sent)
	}
	for i, a := range got {
		if a.body != "amount=700" || a.key != got[0].key {
			t.Errorf("try %d sent %+v; the first %+v", i+1, a, got[0])
		}
		if i == 0 {
			continue
		}
		pause, between := a.at-got[i-1].at, c.Pauses[i-1]
		if pause < seconds(between[0]) || pause > seconds(between[1]) {
			t.Errorf("pause %d took %v; want %v s", i, pause, between)
		}
	}
	if len(got) == 0 {
		return
	}
	var field string
	switch {
	case c.Field == nil:
		if !regexp.MustCompile(`^"[!-~]{22,}"$`).MatchString(got[0].key) {
			t.Errorf("the key is %s", got[0].key)
		}
	case json.Unmarshal(c.Field, &field) != nil || field != got[0].key:
		t.Errorf("the key is %s; want %s", got[0].key, c.Field)
	}
	if _, own := c.Header["X-Idempotency-Key"]; got[0].x != own {
		t.Errorf("X-Idempotency-Key: %v; want %v", got[0].x, own)
	}
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

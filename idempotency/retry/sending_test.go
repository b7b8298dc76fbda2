package retry_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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

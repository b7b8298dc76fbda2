package sqltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Unmoved makes calls on a store whose sessions began after a setting of the server was changed,
// and looks at the same keys through a store whose sessions began before. It returns the first
// answer that differs from what the contract says: a permit too many, a grant or a record that
// only one of the two sees.
func Unmoved(ctx context.Context, before, after Store) error {
	c := caller{ctx: ctx}
	c.permits(before, after)
	c.record(before, after)
	c.abandoned(before, after)
	c.many(before, after)
	return c.err
}

// caller makes calls until one has the wrong answer.
type caller struct {
	ctx context.Context
	err error
}

// claim makes claims in one call, and compares their states.
func (c *caller) claim(what string, s Store, want store.State, claims ...store.Claim) []store.Answer {
	answers := make([]store.Answer, len(claims))
	for i := range claims {
		claims[i].TTL, claims[i].PlaceTTL, claims[i].Weight = time.Hour, time.Hour, 1
		claims[i].Permits = max(claims[i].Permits, 1)
	}
	if c.err == nil {
		c.err = s.Claim(c.ctx, claims, answers)
	}
	for i, a := range answers {
		if c.err == nil && a.Err != nil {
			c.err = fmt.Errorf("%s: %w", what, a.Err)
		}
		if c.err == nil && a.State != want {
			c.err = fmt.Errorf("%s: claim %d is answered %+v; want the state %d", what, i, a, want)
		}
	}
	return answers
}

// settle makes settlements in one call.
func (c *caller) settle(what string, s Store, settlements ...store.Settlement) {
	errs := make([]error, len(settlements))
	if c.err == nil {
		err := s.Settle(c.ctx, settlements, errs)
		c.err = wrapped(what, errors.Join(append(errs, err)...))
	}
}

// renew makes renewals in one call.
func (c *caller) renew(what string, s Store, renewals ...store.Renewal) {
	errs := make([]error, len(renewals))
	if c.err == nil {
		err := s.Renew(c.ctx, renewals, errs)
		c.err = wrapped(what, errors.Join(append(errs, err)...))
	}
}

// same compares what an answer has.
func (c *caller) same(what string, got, want []byte) {
	if c.err == nil && !bytes.Equal(got, want) {
		c.err = fmt.Errorf("%s: it is %q; want %q", what, got, want)
	}
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// permits takes the three permits of a key. A fourth caller waits.
func (c *caller) permits(before, after Store) {
	k := store.Key{Name: "permits " + testkit.Own()}
	claims := make([]store.Claim, 5)
	for i := range claims {
		claims[i] = store.Claim{Key: k, Token: store.NewToken(), Permits: 3, Mode: store.Queue}
	}
	c.claim("the first permit", after, store.Granted, claims[0])
	c.claim("two permits in one call", after, store.Granted, claims[1:3]...)
	c.claim("a fourth of three permits", after, store.Held, claims[3])
	c.claim("a fourth of three permits, seen by another session", before, store.Held, store.Claim{Key: k, Token: store.NewToken(), Permits: 3})
	c.claim("a fifth in the queue", after, store.Held, claims[4])
	c.renew("the renewal of three permits", after, renewals(claims[:3]...)...)
	c.settle("the end of one permit", after, store.Settlement{Key: k, Token: claims[0].Token})
	c.claim("the first of the queue", after, store.Granted, claims[3])
	c.claim("the second of the queue", after, store.Held, claims[4])
	c.settle("the end of the others, by another session", before,
		store.Settlement{Key: k, Token: claims[1].Token}, store.Settlement{Key: k, Token: claims[2].Token},
		store.Settlement{Key: k, Token: claims[3].Token}, store.Settlement{Key: k, Token: claims[4].Token})
	c.claim("the key after the end", after, store.Free, store.Claim{Key: k, Token: store.NewToken(), Mode: store.Look, Permits: 3})
}

// record takes a key with one permit, and leaves a record.
func (c *caller) record(before, after Store) {
	k, token, data := store.Key{Name: "record " + testkit.Own()}, store.NewToken(), []byte("\xbf\\\x81'\x00\xff\"\x1a\r\n?")
	c.claim("a free key", after, store.Granted, store.Claim{Key: k, Token: token, MaxAge: time.Hour})
	c.claim("a key that another session has taken", before, store.Held, store.Claim{Key: k, Token: store.NewToken()})
	c.claim("the same key", after, store.Held, store.Claim{Key: k, Token: store.NewToken()})
	c.renew("a renewal", after, store.Renewal{Key: k, Token: token, TTL: time.Hour})
	c.settle("a record", after, store.Settlement{Key: k, Token: token, Outcome: store.Keep, Data: data, Retention: time.Hour})
	for _, s := range []Store{after, before} {
		answers := c.claim("a key with a record", s, store.Done, store.Claim{Key: k, Token: store.NewToken(), MaxAge: time.Hour})
		c.same("the record", answers[0].Record.Data, data)
	}
}

// abandoned abandons a lease with progress.
func (c *caller) abandoned(before, after Store) {
	k, token, progress := store.Key{Name: "abandoned " + testkit.Own()}, store.NewToken(), []byte("half of it\x00")
	c.claim("a key", after, store.Granted, store.Claim{Key: k, Token: token})
	c.renew("progress", after, store.Renewal{Key: k, Token: token, TTL: time.Hour, Progress: progress})
	c.settle("its end", after, store.Settlement{Key: k, Token: token, Outcome: store.Abandon})
	next := store.NewToken()
	answers := c.claim("an abandoned key", after, store.Granted, store.Claim{Key: k, Token: next})
	c.same("its progress", answers[0].Progress, progress)
	if c.err == nil && answers[0].Attempt != 2 {
		c.err = fmt.Errorf("an abandoned key: it is attempt %d", answers[0].Attempt)
	}
	c.claim("the same key in another session", before, store.Held, store.Claim{Key: k, Token: store.NewToken()})
	c.settle("the end", after, store.Settlement{Key: k, Token: next})
}

// many takes many keys in one call and lists them.
func (c *caller) many(before, after Store) {
	namespace := testkit.Own()
	claims := make([]store.Claim, 20)
	ends := make([]store.Settlement, len(claims))
	for i := range claims {
		k := store.Key{Namespace: namespace, Name: fmt.Sprintf("many %d", i)}
		claims[i] = store.Claim{Key: k, Token: store.NewToken(), Mode: store.Queue}
		ends[i] = store.Settlement{Key: k, Token: claims[i].Token}
	}
	c.claim("many keys", after, store.Granted, claims...)
	c.renew("many renewals", after, renewals(claims...)...)
	if c.err == nil {
		n := 0
		for _, err := range after.List(c.ctx, store.Query{Namespace: &namespace}) {
			c.err = errors.Join(c.err, wrapped("the list", err))
			n++
		}
		if c.err == nil && n != len(claims) {
			c.err = fmt.Errorf("the list has %d of %d keys", n, len(claims))
		}
	}
	others := make([]store.Claim, len(claims))
	for i := range others {
		others[i] = store.Claim{Key: claims[i].Key, Token: store.NewToken()}
	}
	c.claim("many keys in another session", before, store.Held, others...)
	c.settle("many ends", after, ends...)
	c.claim("many keys after their end", before, store.Granted, others...)
}

// renewals renews leases.
func renewals(claims ...store.Claim) (all []store.Renewal) {
	for _, c := range claims {
		all = append(all, store.Renewal{Key: c.Key, Token: c.Token, TTL: time.Hour})
	}
	return all
}

// Product tests a store on a server that says that it is the product: start refuses it by its name,
// with the error unsupported, or open opens it, and Check names it if it is not tested.
func Product[S store.Checker](t *testing.T, p *product.Product, unsupported error, start func() (S, error), open func() S) {
	t.Helper()
	if p.Store != product.Refused {
		FindsProduct(t, open(), p.Name, map[product.Verdict]store.Severity{product.Untested: store.SeverityAdvice}[p.Store])
		return
	}
	_, err := start()
	for _, want := range []string{p.Name, p.Why, p.Cure, p.Source} {
		if err == nil || !errors.Is(err, unsupported) || !strings.Contains(err.Error(), want) {
			t.Fatalf("Open: %v; want %v with %q", err, unsupported, want)
		}
	}
}

// Lacks tests that no store opens for a user without a right, and that the error, which is
// unauthorized, and Check of a store that was opened before name what the right is to.
func Lacks[S Store](t *testing.T, able S, unauthorized error, right, to string, start func() (S, error)) {
	t.Helper()
	s, err := start()
	if err == nil {
		s.Close()
	}
	if !errors.Is(err, unauthorized) || !strings.Contains(err.Error(), to) {
		t.Errorf("without %s: %v", right, err)
	}
	found, err := able.Check(t.Context())
	named := func(f store.Finding) bool { return f.Name == "rights" && strings.Contains(f.What, to) }
	if err == nil && !slices.ContainsFunc(found, named) {
		t.Errorf("without %s, Check found %+v", right, found)
	}
}

// FindsProduct tests what Check finds about the product: a finding of that severity with the text,
// or none if it is "".
func FindsProduct(t *testing.T, s store.Checker, text string, severity store.Severity) {
	t.Helper()
	found, err := s.Check(t.Context())
	testkit.Must(t, err)
	var about []store.Finding
	for _, f := range found {
		if f.Name == "product" {
			about = append(about, f)
		}
	}
	switch {
	case severity == "" && len(about) == 0:
	case len(about) != 1 || about[0].Severity != severity || !strings.Contains(about[0].What, text):
		t.Errorf("found %+v, want %q with %q", about, severity, text)
	}
}

// A Trouble is something that happens to a server, and error.type of the calls that fail then.
type Trouble struct {
	Type   string
	Happen func()
	Over   func() // nil: the next Trouble ends it
}

// ErrorTypes makes calls of a store while its server is in trouble. Metrics tell why they fail.
func ErrorTypes(t *testing.T, s store.Store, troubles ...Trouble) {
	t.Helper()
	var mu sync.Mutex
	var seen map[string]bool
	// The TTL is short, because a claim that a server gets to see after it was undone stands for
	// its TTL.
	client := Client(t, s, &dibs.Options{Timeout: 2 * time.Second, TTL: 5 * time.Second, ObserveStore: func(c dibs.StoreCall) {
		mu.Lock()
		defer mu.Unlock()
		if c.Err != nil {
			seen[errtype.Of(c.Err)] = true
		}
	}})
	work := func() error { return client.TryDo(t.Context(), "k", func(context.Context) error { return nil }) }
	testkit.Must(t, work())
	for _, trouble := range troubles {
		mu.Lock()
		seen = map[string]bool{}
		mu.Unlock()
		trouble.Happen()
		testkit.Eventually(t, "calls fail as "+trouble.Type, func() bool {
			_ = work()
			mu.Lock()
			defer mu.Unlock()
			if seen["_OTHER"] {
				t.Fatalf("%s: a call failed without a type", trouble.Type)
			}
			return seen[trouble.Type]
		})
		if trouble.Over != nil {
			trouble.Over()
			testkit.Eventually(t, "the server serves again", func() bool { return work() == nil })
		}
	}
	// So that the client finds nothing that it cannot undo when it is closed.
	testkit.Eventually(t, "the server serves again", func() bool { return work() == nil })
}

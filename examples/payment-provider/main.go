// Payment-provider: a shop charges cards at a provider, whose charges are in no transaction of
// the shop. The middleware keeps the answer, dibs.Step the provider's, and the provider's own
// idempotency key covers the call whose answer was lost. Each order is sent twice. For order 17
// the provider's answer is lost, order 18 has a bad card, and at order 19 the handler crashes
// after the charge. The provider makes two charges. docs/guides/payment-provider.md says more.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/stores/memstore"
)

// once sends each request once. Go's default client sends one with an Idempotency-Key again by
// itself if its connection breaks.
var once = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	store, err := memstore.New(nil)
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := dibs.New(store, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	guard, err := idempotency.New(client, &idempotency.Options{RequireKey: true})
	if err != nil {
		return err
	}
	p := &provider{charges: map[string]charge{}}
	stripe := httptest.NewServer(p)
	defer stripe.Close()
	s := &shop{provider: stripe.URL}
	server := httptest.NewServer(guard.Wrap(http.HandlerFunc(s.serve)))
	defer server.Close()

	for _, order := range []struct{ key, card string }{{"order-17", "slow"}, {"order-18", "bad"}, {"order-19", "good"}} {
		for range 2 {
			status, text, err := post(context.Background(), server.URL, order.key, url.Values{"card": {order.card}, "amount": {"700"}})
			if err != nil {
				text = "no answer"
			}
			fmt.Println(order.key, status, strings.TrimSpace(text))
		}
	}
	fmt.Printf("the provider was asked %d times and made %d charges\n", p.asked, p.made)
	return guard.Drain(context.Background())
}

type shop struct {
	provider string // its URL
	crashed  bool
}

// serve crashes once, at order 19 and after the charge.
func (s *shop) serve(w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	s.charge(answer, r)
	if strings.Contains(r.Header.Get("Idempotency-Key"), "19") && !s.crashed {
		s.crashed = true
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(answer.Code)
	fmt.Fprint(w, answer.Body)
}

// charge charges the card of a request once.
func (s *shop) charge(w http.ResponseWriter, r *http.Request) {
	lease, ok := dibs.FromContext(r.Context())
	if !ok { // a GET, which is not guarded
		http.Error(w, "charges are made by POST", http.StatusMethodNotAllowed)
		return
	}
	key := fmt.Sprintf("%x", sha256.Sum256([]byte("charge\n"+lease.Key().Name)))
	made, err := dibs.Step(r.Context(), "charge", func(ctx context.Context) (charge, error) {
		return s.ask(ctx, key, r.FormValue("card"), r.FormValue("amount"))
	})
	switch {
	case err != nil: // perhaps charged; not kept, and the next attempt asks under the same key
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case made.Declined != "": // kept: a retry gets it again
		http.Error(w, made.Declined, http.StatusPaymentRequired)
	default:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintln(w, made.ID)
	}
}

// ask asks the provider for a charge.
func (s *shop) ask(ctx context.Context, key, card, amount string) (made charge, err error) {
	status, text, err := post(ctx, s.provider, key, url.Values{"card": {card}, "amount": {amount}})
	switch {
	case err != nil:
		return made, err
	case status == http.StatusOK, status == http.StatusPaymentRequired:
		return made, json.Unmarshal([]byte(text), &made)
	default:
		return made, fmt.Errorf("the provider answers %d: %s", status, text)
	}
}

func post(ctx context.Context, to, key string, form url.Values) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Authorization", "Bearer shop-3")
	r.Header.Set("Idempotency-Key", `"`+key+`"`)
	response, err := once.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// charge is what the provider says.
type charge struct{ ID, Declined string }

// provider stands for Stripe.
type provider struct {
	charges     map[string]charge // by idempotency key
	asked, made int
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked++
	key := r.Header.Get("Idempotency-Key")
	c, known := p.charges[key]
	if !known {
		if r.FormValue("card") == "bad" {
			c.Declined = "insufficient funds"
		} else {
			p.made++
			c.ID = fmt.Sprint("ch_", p.made)
		}
		p.charges[key] = c
	}
	if r.FormValue("card") == "slow" && !known {
		panic(http.ErrAbortHandler) // charged, and the answer is lost
	}
	if c.Declined != "" {
		w.WriteHeader(http.StatusPaymentRequired)
	}
	fmt.Fprintf(w, `{"ID":%q,"Declined":%q}`, c.ID, c.Declined)
}

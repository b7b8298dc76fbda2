// Stripe: an API whose idempotency keys do what Stripe documents of its own. The options are ten
// lines, and the handler needs one more: an answer to a request that it did not begin is not kept.
// docs/reference/http.md says which sentence of Stripe's documentation each of them is for.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/internal/database"
	"github.com/dibs-go/dibs/idempotency"
)

// guardLikeStripe makes the middleware.
func guardLikeStripe(client *dibs.Client) (*idempotency.Middleware, error) {
	return idempotency.New(client, &idempotency.Options{
		Methods:        []string{http.MethodPost},
		Retention:      24 * time.Hour,
		Keep:           []string{"default", "5xx"},
		MismatchStatus: http.StatusBadRequest,
		WriteProblem:   idempotency.WriteStripeError,
	})
}

// charge charges a card.
func (s *shop) charge(w http.ResponseWriter, r *http.Request) {
	amount, err := strconv.Atoi(r.FormValue("amount"))
	if err != nil || amount <= 0 {
		w.Header().Set("Idempotency-Control", "no-store") // nothing has begun
		http.Error(w, "invalid amount", http.StatusBadRequest)
		return
	}
	status, text := s.ask(r.FormValue("card"), amount)
	w.WriteHeader(status)
	fmt.Fprint(w, text)
}

// shop is the service.
type shop struct {
	charges int
	begun   chan struct{} // a slow charge has begun
	finish  chan struct{} // it may end
}

// ask stands for the bank.
func (s *shop) ask(card string, amount int) (status int, text string) {
	s.charges++
	switch card {
	case "declined":
		return http.StatusPaymentRequired, "declined"
	case "fault":
		return http.StatusInternalServerError, "fault"
	case "slow":
		s.begun <- struct{}{}
		<-s.finish
	}
	return http.StatusCreated, fmt.Sprintf("charge %d of %d", s.charges, amount)
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "stripe:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := database.Make(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	client, err := dibs.New(db.Store, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	guard, err := guardLikeStripe(client)
	if err != nil {
		return err
	}
	s := &shop{begun: make(chan struct{}), finish: make(chan struct{})}
	server := httptest.NewServer(guard.Wrap(http.HandlerFunc(s.charge)))
	defer server.Close()
	fmt.Printf("Each of these is sent, and then something again under its key, on %v.\n\n", db.Dialect)

	for _, c := range []struct{ what, key, first, again, want string }{
		{"a charge", "order-17", "amount=700", "amount=700", "201, then 201 replayed"},
		{"a declined card", "order-18", "amount=700&card=declined", "amount=700&card=declined", "402, then 402 replayed"},
		{"a fault of the service", "order-19", "amount=700&card=fault", "amount=700&card=fault", "500, then 500 replayed"},
		{"an invalid amount, then a valid one", "order-20", "amount=x", "amount=700", "400, then 201"},
		{"another amount", "order-21", "amount=700", "amount=800", "201, then 400 idempotency_error"},
		{"the same while it runs", "order-22", "amount=700&card=slow", "amount=700&card=slow", "201, then 409 idempotency_key_in_use"},
		{"a key of 255 characters", strings.Repeat("k", 255), "amount=700", "amount=700", "201, then 201 replayed"},
		{"a key of 256 characters", strings.Repeat("k", 256), "amount=700", "amount=700", "400 invalid_request_error, then 400 invalid_request_error"},
	} {
		got, err := s.sendTwice(ctx, server.URL, c.key, c.first, c.again)
		if err != nil {
			return err
		}
		fmt.Printf("%-36s  %s\n", c.what, got)
		if got != c.want {
			return fmt.Errorf("%s: not %s", c.what, c.want)
		}
	}
	return guard.Drain(ctx)
}

// sendTwice sends a request, and another one under the same key: while the first one runs, if that
// is slow.
func (s *shop) sendTwice(ctx context.Context, to, key, first, again string) (string, error) {
	var second string
	answered := make(chan error, 1)
	if strings.Contains(first, "slow") {
		go func() {
			<-s.begun
			var err error
			second, err = send(ctx, to, key, again)
			answered <- err
			s.finish <- struct{}{}
		}()
	}
	one, err := send(ctx, to, key, first)
	if err != nil {
		return "", err
	}
	if strings.Contains(first, "slow") {
		err = <-answered
	} else {
		second, err = send(ctx, to, key, again)
	}
	return one + ", then " + second, err
}

// send returns the status of the answer, and what it says of the key.
func send(ctx context.Context, to, key, form string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(form))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Authorization", "Bearer shop-3")
	r.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	says := ""
	if response.Header.Get("Idempotent-Replayed") == "true" {
		says = " replayed"
	}
	for _, word := range []string{"idempotency_key_in_use", "idempotency_error", "invalid_request_error"} {
		if strings.Contains(string(body), word) {
			says = " " + word
			break
		}
	}
	return strconv.Itoa(response.StatusCode) + says, nil
}

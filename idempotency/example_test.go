package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/stores/memstore"
)

// post sends a request with a key, and prints what came back.
func post(server *httptest.Server, path, key, body string) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, server.URL+path, strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", key)
	res, err := server.Client().Do(r)
	if err != nil {
		log.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		log.Fatal(err)
	}
	if res.StatusCode >= 400 {
		text = nil
	}
	fmt.Printf("%d %s replayed=%q\n", res.StatusCode, text, res.Header.Get("Idempotent-Replayed"))
}

// exampleClient returns a client of a store in memory; a real server would use
// one that outlives it.
func exampleClient() *dibs.Client {
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func Example() {
	m, err := idempotency.New(exampleClient(), nil)
	if err != nil {
		log.Fatal(err)
	}
	charges := 0
	server := httptest.NewServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d", charges)
	})))
	defer server.Close()

	post(server, "/charges", `"one"`, "amount=12")
	post(server, "/charges", `"one"`, "amount=12") // a retry
	post(server, "/charges", `"one"`, "amount=99") // a mistake
	post(server, "/charges", `"two"`, "amount=12")
	// Output:
	// 201 charge 1 replayed=""
	// 201 charge 1 replayed="true"
	// 422  replayed=""
	// 201 charge 2 replayed=""
}

// A program with several policies makes several middlewares over one client.
func ExampleMiddleware_Wrap() {
	client := exampleClient()
	payments, err := idempotency.New(client, &idempotency.Options{
		RequireKey: true,
		OnCrash:    idempotency.AtMostOnce,
	})
	if err != nil {
		log.Fatal(err)
	}
	hooks, err := idempotency.New(client, &idempotency.Options{
		Key:   idempotency.KeyJSON("id"), // the sender's event id
		Scope: []idempotency.ScopePart{idempotency.ScopeHeader("X-Sender")},
	})
	if err != nil {
		log.Fatal(err)
	}
	ok := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.URL.Path) })
	mux := http.NewServeMux()
	mux.Handle("POST /payments", payments.Wrap(ok))
	mux.Handle("POST /hooks", hooks.Wrap(ok))
	server := httptest.NewServer(mux)
	defer server.Close()

	post(server, "/payments", "a", "{}")
	post(server, "/hooks", "b", `{"id":"evt_1"}`)
	post(server, "/hooks", "c", `{"id":"evt_1"}`)
	// Output:
	// 200 /payments replayed=""
	// 200 /hooks replayed=""
	// 200 /hooks replayed="true"
}

// A handler that stands for another server says what became of the request.
func ExampleFail() {
	m, err := idempotency.New(exampleClient(), nil)
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// … the origin hung up after the request was sent.
		if !idempotency.Fail(r.Context(), idempotency.HungUp) {
			idempotency.WriteProblem(w, r, idempotency.FailureProblem(idempotency.HungUp))
		}
	})))
	defer server.Close()
	post(server, "/", "one", "")
	// Output:
	// 502  replayed=""
}

func ExampleDecodeAnswer() {
	record, err := idempotency.EncodeAnswer("http:", &idempotency.Answer{
		Status: http.StatusCreated,
		Header: http.Header{"Location": {"/charges/1"}},
		Body:   []byte("charge 1"),
	})
	if err != nil {
		log.Fatal(err)
	}
	a, err := idempotency.DecodeAnswer(record, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d %s %s\n", a.Status, a.Header.Get("Location"), a.Body)
	// Output:
	// 201 /charges/1 charge 1
}

// The ring comes from a file or a secret store. Its first key encrypts the answers.
func ExampleParseKeyRing() {
	ring, err := idempotency.ParseKeyRing(`
		2026-07:b25lIHNlY3JldCBvZiAzMiBieXRlcyBmb3IgYSBkb2M=
		2026-01:YW5vdGhlciBzZWNyZXQgb2YgMzIgYnl0ZXMgaGVyZSE=
	`)
	if err != nil {
		log.Fatal(err)
	}
	m, err := idempotency.New(exampleClient(), &idempotency.Options{KeyRing: ring})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "card 4111")
	})))
	defer server.Close()
	post(server, "/cards", `"order-17"`, "")
	post(server, "/cards", `"order-17"`, "")
	// Output:
	// 200 card 4111 replayed=""
	// 200 card 4111 replayed="true"
}

// Steps that were done are skipped when the retry runs after a crash.
func Example_step() {
	m, err := idempotency.New(exampleClient(), nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := dibs.Step(r.Context(), "charge", func(context.Context) (string, error) {
			return "ch_17", nil // an effect elsewhere
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, id)
	}))
	server := httptest.NewServer(handler)
	defer server.Close()
	post(server, "/charges", `"order-17"`, "amount=700")
	post(server, "/charges", `"order-17"`, "amount=700")
	// Output:
	// 200 ch_17 replayed=""
	// 200 ch_17 replayed="true"
}

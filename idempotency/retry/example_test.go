package retry_test

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
	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/stores/memstore"
)

// The line breaks after the charge, before the answer. The client's code does
// not notice: the transport sends the request again, with the same key, and gets
// the answer that was stored.
func ExampleTransport() {
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	locks, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	m, err := idempotency.New(locks, nil)
	if err != nil {
		log.Fatal(err)
	}
	charges := 0
	guarded := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges++
		fmt.Fprintf(w, "charge %d", charges)
	}))
	cut := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !cut {
			cut = true
			guarded.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		guarded.ServeHTTP(w, r)
	}))
	defer server.Close()

	transport, err := retry.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, server.URL, strings.NewReader("amount=700"))
	if err != nil {
		log.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(response.StatusCode, string(text))
	fmt.Println("charges:", charges)
	// Output:
	// 200 charge 1
	// charges: 1
}

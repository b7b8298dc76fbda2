package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// startRedis stands for the Redis that you have.
func startRedis() (url string, stop func()) {
	scope := servertest.NewScope()
	return servertest.Redis(scope, nil).URL(), scope.Close
}

func Example() {
	url, stop := startRedis()
	defer stop()
	ctx := context.Background()

	store, err := redisstore.Open(ctx, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.Do(ctx, "invoice 7", func(ctx context.Context) error {
		fmt.Println("one process at a time, on all hosts")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: one process at a time, on all hosts
}

// A program that has a rueidis client gives it to New, and closes it itself.
func ExampleNew() {
	url, stop := startRedis()
	defer stop()

	client, err := rueidis.NewClient(rueidis.MustParseURL(url + "?client_cache=0"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	store, err := redisstore.New(client, &redisstore.Options{Prefix: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	fmt.Println(store.Prefix())
	// Output: billing
}

// A wrong server has another error than a wrong URL.
func ExampleOpen_errors() {
	for _, url := range []string{"redis://host:port", "redis://127.0.0.1:1"} {
		_, err := redisstore.Open(context.Background(), url, nil)
		switch {
		case errors.Is(err, redisstore.ErrURL):
			fmt.Println(err)
		case errors.Is(err, redisstore.ErrUnreachable):
			fmt.Println("no answer")
		}
	}
	// Output:
	// redisstore: not the URL of a Redis: a port must be a number from 1 to 65535: redis://[USER:PASSWORD@]HOST[:PORT][/DB]
	// no answer
}

// Before something is lost, the set-up of the server can be looked at.
func ExampleStore_Check() {
	url, stop := startRedis()
	defer stop()

	store, err := redisstore.Open(context.Background(), url, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	findings, err := store.Check(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range findings {
		fmt.Println(f.Name, f.Severity)
	}
	// Output: persistence dangerous
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/stores/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	address, err := rueidis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		return fmt.Errorf("REDIS_URL must be an address such as redis://127.0.0.1:6379: %w", err)
	}
	redis, err := rueidis.NewClient(address)
	if err != nil {
		return err
	}
	defer redis.Close()
	store, err := redisstore.New(redis, nil)
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

	server := &http.Server{Addr: "127.0.0.1:8080", Handler: guard.Wrap(charge(redis))}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done() // no new requests; those that run get 30 s, and their answers are stored
		limit, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		stopped <- errors.Join(server.Shutdown(limit), guard.Drain(limit))
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// charge counts a charge. The step is kept with the key as soon as it is done.
func charge(redis rueidis.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := dibs.Step(r.Context(), "charge", func(ctx context.Context) (int64, error) {
			return redis.Do(ctx, redis.B().Incr().Key("charges").Build()).AsInt64()
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "charge ", id)
	})
}

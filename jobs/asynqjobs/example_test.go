package asynqjobs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"sync"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/jobs/asynqjobs"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// startRedis stands for the server that you have.
func startRedis() (addr string, stop func()) {
	scope := servertest.NewScope()
	return servertest.Redis(scope, nil).Addr(), scope.Close
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Message is an event of a conversation.
type Message struct {
	Conversation int64
	Text         string
}

func NewMessageTask(m Message) (*asynqjobs.Task, error) {
	payload, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprint("conversation ", m.Conversation)
	return asynqjobs.NewTask("message", payload, key, asynq.MaxRetry(5)), nil
}

// All events of a conversation are handled in their order, one after the other, by
// however many processes.
func Example() {
	addr, stop := startRedis()
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx := context.Background()

	// In every program: the mutex.
	store, err := redisstore.Open(ctx, "redis://"+addr, nil)
	check(err)
	defer store.Close()
	client, err := dibs.New(store, nil)
	check(err)
	defer client.Close()
	redis := asynq.RedisClientOpt{Addr: addr}
	mutex, err := asynqjobs.New(redis, client, nil)
	check(err)
	defer mutex.Close()

	// Where tasks are enqueued: their places are taken.
	var all sync.WaitGroup
	for i := range 5 {
		task, err := NewMessageTask(Message{Conversation: 42, Text: fmt.Sprint("message ", i+1)})
		check(err)
		if _, err := mutex.EnqueueContext(ctx, task); err != nil {
			log.Fatal(err)
		}
		all.Add(1)
	}

	// Where they run: in their turn.
	mux := asynq.NewServeMux()
	mux.Use(mutex.Middleware)
	mux.HandleFunc("message", func(ctx context.Context, t *asynq.Task) error {
		var m Message
		if err := json.Unmarshal(t.Payload(), &m); err != nil {
			return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
		}
		fmt.Println(m.Text)
		all.Done()
		return nil
	})
	server := asynq.NewServer(redis, asynqjobs.Config(asynq.Config{Concurrency: 20, LogLevel: asynq.FatalLevel}))
	check(server.Start(mux))
	all.Wait() // your program waits for a signal here

	// The end, in this order: what waits in a worker goes to another process at once.
	server.Stop()
	mutex.Stop()
	server.Shutdown()
	// Output:
	// message 1
	// message 2
	// message 3
	// message 4
	// message 5
}

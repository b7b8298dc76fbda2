package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/stores/memstore"
)

// The jobs of one conversation run one after the other, in the order in which they
// were enqueued.
func ExampleMutex() {
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	mutex, err := jobs.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer mutex.Close()

	ctx := context.Background()
	// The places are reserved when the jobs are enqueued. The tickets travel with the jobs.
	first, err := mutex.Enqueue(ctx, jobs.Job{Kind: "message", ID: "1", Key: "conversation 7"})
	if err != nil {
		log.Fatal(err)
	}
	second, err := mutex.Enqueue(ctx, jobs.Job{Kind: "message", ID: "2", Key: "conversation 7"})
	if err != nil {
		log.Fatal(err)
	}

	open := func(context.Context) error { fmt.Println("opened"); return nil }
	answer := func(context.Context) error { fmt.Println("answered"); return nil }

	// A worker has the second one before any worker has the first.
	err = mutex.Run(ctx, jobs.Job{Kind: "message", ID: "2", Key: "conversation 7", Ticket: second}, answer)
	if back, ok := errors.AsType[*jobs.RequeueError](err); ok {
		fmt.Println("not its turn:", back.Ahead, "before it")
	}
	fmt.Println(mutex.Run(ctx, jobs.Job{Kind: "message", ID: "1", Key: "conversation 7", Ticket: first}, open))
	fmt.Println(mutex.Run(ctx, jobs.Job{Kind: "message", ID: "2", Key: "conversation 7", Ticket: second}, answer))
	// Output:
	// not its turn: 1 before it
	// opened
	// <nil>
	// answered
	// <nil>
}

// A loop of one's own over messages that may be delivered twice.
func ExampleHandle() {
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	mutex, err := jobs.New(client, &jobs.Options{Policy: jobs.Wait, Unordered: true, Once: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	defer mutex.Close()

	type message struct{ ID, Account, Text string }
	handle := jobs.Handle(mutex,
		func(m message) jobs.Job { return jobs.Job{Kind: "message", ID: m.ID, Key: "account " + m.Account} },
		func(_ context.Context, m message) error { fmt.Println(m.Text); return nil },
	)
	for _, m := range []message{{"1", "a", "book 5"}, {"1", "a", "book 5"}, {"2", "a", "book 7"}} {
		if err := handle(context.Background(), m); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// book 5
	// book 7
}

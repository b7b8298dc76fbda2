package riverjobs_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/pgstore"
	"github.com/dibs-go/dibs/riverjobs"
)

// Message is a job's arguments. Those of one conversation take turns.
type Message struct {
	Conversation int64  `json:"conversation" dibs:"key,conversation"`
	Text         string `json:"text"`
}

func (Message) Kind() string { return "message" }

// Worker works them: what it does and that it is done are committed together.
type Worker struct {
	river.WorkerDefaults[Message]
}

func (*Worker) Work(ctx context.Context, job *river.Job[Message]) error {
	return riverjobs.Commit(ctx, job, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO said (conversation, text) VALUES ($1, $2)", job.Args.Conversation, job.Args.Text)
		return err
	})
}

func Example() {
	url := databaseURL()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	prepare(ctx, pool)

	store, err := pgstore.New(ctx, pool, &pgstore.Options{Migrate: true})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	keys, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	queues := map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 50}}
	turns, err := riverjobs.New(keys, &riverjobs.Options{
		Queues:     queues,                        // half of their workers are for jobs of other keys than a hot one
		Reserver:   store.Reserver,                // places are taken in the transaction that inserts the job
		Transactor: store.Transactions(pool, nil), // and end in the one that completes it
		Tx:         pgstore.Tx,
	})
	if err != nil {
		log.Fatal(err)
	}
	riverjobs.Tagged[Message](turns)

	workers := river.NewWorkers()
	river.AddWorker(workers, &Worker{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown: 10 * time.Millisecond,
		Middleware:    []rivertype.Middleware{turns},
		Queues:        queues,
		Workers:       workers,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}

	tx, err := pool.Begin(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback(ctx)
	for _, text := range []string{"hello", "are you there?", "bye"} {
		if _, err := riverjobs.InsertTx(ctx, client, tx, Message{Conversation: 7, Text: text}, nil); err != nil {
			log.Fatal(err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		log.Fatal(err)
	}

	for _, text := range said(ctx, pool, 3) {
		fmt.Println(text)
	}

	turns.Close() // who waits in a worker goes back to the queue
	if err := client.Stop(ctx); err != nil {
		log.Fatal(err)
	}
	if err := keys.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// hello
	// are you there?
	// bye
}

// databaseURL names the database that you have.
func databaseURL() string { return riverjobs.EmptyDatabase() }

// prepare makes River's tables, and the application's.
func prepare(ctx context.Context, pool *pgxpool.Pool) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE said (id bigserial PRIMARY KEY, conversation bigint, text text)"); err != nil {
		log.Fatal(err)
	}
}

// said waits until so many messages are there, and returns them in order.
func said(ctx context.Context, pool *pgxpool.Pool, n int) []string {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		rows, err := pool.Query(ctx, "SELECT text FROM said ORDER BY id")
		if err != nil {
			log.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			log.Fatal(err)
		}
		if len(texts) >= n {
			return texts
		}
	}
	return nil
}

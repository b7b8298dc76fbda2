package riverjobs_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/jobs/riverjobs"
	"github.com/dibs-go/dibs/stores/pgstore"
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
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, riverjobs.NewDatabase()) // that has River's tables
	check(err)
	defer pool.Close()
	_, err = pool.Exec(ctx, "CREATE TABLE said (id bigserial PRIMARY KEY, conversation bigint, text text)")
	check(err)
	check(riverjobs.Migrate(ctx, pool, ""))

	store, err := pgstore.New(ctx, pool, &pgstore.Options{Migrate: true})
	check(err)
	defer store.Close()
	keys, err := dibs.New(store, nil)
	check(err)
	workers := river.NewWorkers()
	river.AddWorker(workers, &Worker{})

	config := &river.Config{
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 50}},
		Workers:              workers,
		FetchCooldown:        10 * time.Millisecond, // a runnable job is fetched no earlier
		RescueStuckJobsAfter: 5 * time.Minute,       // when River gives the job of a dead worker to another
	}
	turns, err := riverjobs.Configure(config, keys, pool, &riverjobs.Options{
		Jobs:       jobs.Options{CrashGrace: 6 * time.Minute}, // other jobs of the key wait for that job as long
		Reserver:   store.Reserver,                            // places are taken in the transaction that inserts the job
		Transactor: store.Transactions(pool, nil),             // and end in the one that completes it
		Tx:         pgstore.Tx,
	})
	check(err)
	riverjobs.Tagged[Message](turns)
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	check(err)
	done, end := client.Subscribe(river.EventKindJobCompleted)
	defer end()
	check(client.Start(ctx))

	tx, err := pool.Begin(ctx)
	check(err)
	defer tx.Rollback(ctx)
	for _, text := range []string{"hello", "are you there?", "bye"} {
		_, err := riverjobs.InsertTx(ctx, client, tx, Message{Conversation: 7, Text: text}, nil)
		check(err)
	}
	check(tx.Commit(ctx))

	for range 3 {
		<-done
	}
	rows, _ := pool.Query(ctx, "SELECT text FROM said ORDER BY id")
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(err)
	fmt.Println(strings.Join(texts, "\n"))

	turns.Close() // jobs that wait in a worker go back to the queue
	check(client.Stop(ctx))
	check(keys.Close())
	// Output:
	// hello
	// are you there?
	// bye
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

//go:build nightly

package asynqjobs

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/pgstore"
)

var sharedPostgres = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 200})
})

func init() {
	works["storm"] = stormWork
	stores["postgres"] = func(ctx context.Context, url string) (dibs.Store, error) { return pgstore.Open(ctx, url, nil) }
}

var seedFlag = flag.Uint64("seed", 0, "the seed of the storm; 0: a new one")

// event is the payload of a job of the storm.
type event struct{ Conversation, Number int }

const stormTables = `
CREATE TABLE mark (
	seq          bigint GENERATED ALWAYS AS IDENTITY,
	conversation int    NOT NULL,
	number       int    NOT NULL,
	what         text   NOT NULL,
	pid          int    NOT NULL
)`

const insertMark = "INSERT INTO mark (conversation, number, what, pid) VALUES ($1, $2, $3, pg_backend_pid())"

// stormWork writes down that it begins, what it does, in the transaction with which it
// is remembered that the job is done, and that it ends. Some fail, some panic.
func stormWork(p *processWork) (asynq.HandlerFunc, error) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, p.plan.Store+fmt.Sprint("&pool_max_conns=", p.plan.Concurrency))
	if err != nil {
		return nil, err
	}
	marks, err := pgxpool.New(ctx, p.plan.Store) // not those of the transactions, all of which may be in use
	if err != nil {
		return nil, err
	}
	store := p.store.(*pgstore.Store)
	p.options.Once, p.options.Transactor = time.Hour, store.Transactions(pool, nil)
	return func(ctx context.Context, t *asynq.Task) error {
		var e event
		if err := json.Unmarshal(t.Payload(), &e); err != nil {
			return err
		}
		if _, err := marks.Exec(ctx, insertMark, e.Conversation, e.Number, "begin"); err != nil {
			return err
		}
		takes := rand.N(10 * time.Millisecond)
		if rand.N(100) < 2 {
			takes = 50 * time.Millisecond
		}
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		tx, ok := pgstore.Tx(ctx)
		if !ok {
			return errors.New("there is no transaction")
		}
		if _, err := tx.Exec(ctx, insertMark, e.Conversation, e.Number, "effect"); err != nil {
			return err
		}
		switch n := rand.N(100); {
		case n < 5:
			return errors.New("this job fails at times")
		case n < 7:
			panic("this job panics at times")
		}
		_, err := marks.Exec(ctx, insertMark, e.Conversation, e.Number, "end")
		return err
	}, nil
}

// TestStorm: events of many conversations, enqueued by two, most of them while the
// workers of four processes run, some of which are killed; jobs fail and panic. The effects of each
// conversation are there once each, in the order of the enqueuing, and no two of its
// jobs overlap.
//
// Asynq gives the jobs of a dead process to another one a minute after its death at the
// earliest, and that cannot be set: the kills are early.
func TestStorm(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat it: go test -race -tags nightly -run TestStorm -args -seed %d", seed)
		}
	})
	const conversations, each, processes, kills, backlog = 200, 25, 4, 8, 240
	r := ownRedis(t)
	url := sharedPostgres().URL()
	store, err := pgstore.Open(t.Context(), url, &pgstore.Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), stormTables); err != nil {
		t.Fatal(err)
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// Longer than it takes until the jobs of the dead come back, also where the machine is
	// slow: who is given up is passed. A worker may be killed before dibs has heard that it
	// has the job: until then the place is that of one whose enqueuing may have been rolled
	// back.
	const back = 10 * time.Minute
	c, err := New(r, client, &Options{Jobs: jobs.Options{Hold: back, Recovery: back}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	p := plan{
		Work: "storm", Redis: r.Addr, DB: r.DB, Store: url, Concurrency: 10,
		TTL: 5 * time.Second, Hold: back, Recovery: back, Shutdown: 8 * time.Second,
	}
	var enqueuing sync.WaitGroup
	var begun sync.WaitGroup // there are more than there are workers
	begun.Add(2)
	for half := range 2 {
		enqueuing.Go(func() {
			chance := rand.New(rand.NewPCG(seed, uint64(half)))
			numbers := make([]int, conversations/2)
			for n := range conversations / 2 * each {
				if n == backlog/2 {
					begun.Done()
				}
				i := chance.IntN(len(numbers))
				for numbers[i] == each {
					i = (i + 1) % len(numbers)
				}
				numbers[i]++
				e := event{Conversation: half*conversations/2 + i + 1, Number: numbers[i]}
				payload, _ := json.Marshal(e)
				if _, err := c.EnqueueContext(t.Context(), NewTask("event", payload, fmt.Sprint("conversation ", e.Conversation))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	begun.Wait()
	children := make([]*child, processes)
	for i := range children {
		children[i] = startChild(t, p)
	}
	effects := func() (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM mark WHERE what = 'effect'").Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	// All kills are early: nothing can be done for the dead processes' jobs for a minute.
	var lastKill time.Time
	chance := rand.New(rand.NewPCG(seed, 2))
	for k := range kills {
		eventuallyWithin(t, 3*time.Minute, "the work goes on", func() bool { return effects() > conversations*each/50*(k+1) })
		i := chance.IntN(processes)
		children[i].Kill()
		lastKill = time.Now()
		children[i] = startChild(t, p)
	}
	enqueuing.Wait()
	t.Logf("%d effects when the last of %d processes was killed", effects(), kills)
	calm := effects()
	eventuallyWithin(t, 2*time.Minute, "Asynq gives up the dead processes' jobs", func() bool {
		if n := effects(); n < conversations*each && time.Since(lastKill) < 61*time.Second {
			calm = n
			return false
		}
		return true
	})
	t.Logf("%d effects before Asynq gave the dead processes' jobs to others", calm)
	// A server looks for those when it starts, and every minute.
	children[0].stop(t)
	children[0] = startChild(t, p)
	eventuallyWithin(t, 4*time.Minute, "all effects are there", func() bool { return effects() == conversations*each })
	inspector := asynq.NewInspector(r)
	defer inspector.Close()
	eventuallyWithin(t, time.Minute, "the queue is empty", func() bool {
		info, err := inspector.GetQueueInfo("default")
		return err == nil && info.Size == 0
	})
	for _, c := range children {
		c.stop(t)
	}
	checkStorm(t, conversations, each)
}

// checkStorm reads the marks in the database's order. Those of a conversation are, for
// one number after the other: begin, and after failures begin again, effect, end.
func checkStorm(t *testing.T, conversations, each int) {
	t.Helper()
	marks := map[string][]string{}
	for _, row := range sharedPostgres().Query("SELECT conversation, number, what FROM mark ORDER BY seq") {
		marks[row[0]] = append(marks[row[0]], row[2]+" "+row[1])
	}
	if len(marks) != conversations {
		t.Errorf("%d conversations have marks, want %d", len(marks), conversations)
	}
	attempts := 0
	for conversation, got := range marks {
		rest := got
		for n := range each {
			number := strconv.Itoa(n + 1)
			begun := 0
			for len(rest) > 0 && rest[0] == "begin "+number {
				rest = rest[1:]
				begun++
				// An end without an effect is that of a run that was not committed.
				if len(rest) > 1 && rest[0] == "end "+number {
					rest = rest[1:]
				}
			}
			attempts += begun
			if begun == 0 || len(rest) < 2 || rest[0] != "effect "+number || rest[1] != "end "+number {
				t.Errorf("conversation %s: the marks of number %s are not right:\n%s", conversation, number, strings.Join(got, "\n"))
				break
			}
			rest = rest[2:]
			if n == each-1 && len(rest) > 0 {
				t.Errorf("conversation %s: marks are left: %v", conversation, rest)
			}
		}
	}
	t.Logf("%d attempts for %d effects", attempts, conversations*each)
}

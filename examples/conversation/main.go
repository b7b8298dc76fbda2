// Conversation: two webhook events of one conversation arrive together, and two workers
// take them. Each worker sees that the conversation is not open, and opens it. Now there
// are two.
//
// The usual cure is a lock that the job takes: SET NX with an expiry of a second, an
// error for a job that finds the lock taken, and a queue that tries eight times, each
// time later. That has three faults. A job that takes longer than the expiry is not alone.
// A job that comes at the right moment passes earlier jobs. And a job that comes eight
// times at the wrong moment is dropped, though nothing was wrong with it. A longer expiry
// repairs the first fault only.
//
// With jobs.Mutex an event takes its place when it is enqueued, the key is held as long as
// the job runs, and waiting is not failing. So the queue may even drop each job that fails
// once. docs/guides/jobs.md has the choices.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/internal/concurrent"
	"github.com/dibs-go/dibs/examples/internal/database"
	"github.com/dibs-go/dibs/jobs"
)

// lease is how long a job keeps its key if its worker pauses.
const lease = 3 * time.Second

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "conversation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := database.Make(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "CREATE TABLE conversation (name text NOT NULL)"); err != nil {
		return err
	}
	client, err := dibs.New(db.Store, &dibs.Options{TTL: lease})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	mutex, err := jobs.New(client, nil)
	if err != nil {
		return err
	}
	defer mutex.Close()

	fmt.Printf("Events of one conversation arrive, and two workers take them, on %v.\n\n", db.Dialect)
	fmt.Println("                                  events  opened  at once  passed  dropped")
	for _, way := range []struct {
		name   string
		events int
		bring  func(context.Context, *conversation) []error
		cure   bool
	}{
		{name: "no lock", events: 2, bring: together(nil)},
		{name: "SET NX for 1 s, a long job", events: 2, bring: together(&lock{expiry: time.Second})},
		{name: "SET NX for 1 min, one more event", events: 3, bring: overtaken},
		{name: "SET NX for 1 min, eight more", events: 10, bring: overtaken},
		{name: "jobs.Mutex, 3 s, all of that", events: 50, bring: inTurn(mutex), cure: true},
	} {
		c := &conversation{db: db, name: way.name, events: way.events, begun: make(chan int, way.events)}
		dropped := way.bring(ctx, c)
		var opened int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM conversation WHERE name = $1", c.name).Scan(&opened); err != nil {
			return err
		}
		fmt.Printf("%-34s %5d %7d %8d %7d %8d\n", c.name, c.events, opened, c.atOnce, c.passed, len(dropped))
		if way.cure && (opened != 1 || c.atOnce != 1 || c.passed != 0 || c.last != c.events || c.worked != c.events) {
			return fmt.Errorf("that is not one conversation, and every event once, alone and in its turn: %w", errors.Join(dropped...))
		}
	}
	return nil
}

// conversation is what the events are about.
type conversation struct {
	db     *database.Database
	name   string
	events int
	work   func(ctx context.Context, number int) error // the slow part of an event
	begun  chan int

	mu                                   sync.Mutex
	inside, atOnce, worked, last, passed int
}

// handle is what an event does. The first one opens the conversation.
func (c *conversation) handle(ctx context.Context, j *job) error {
	var open bool
	if err := c.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM conversation WHERE name = $1)", c.name).Scan(&open); err != nil {
		return err
	}
	defer c.enter(j.number)()
	if err := c.work(ctx, j.number); err != nil || open {
		return err
	}
	_, err := c.db.ExecContext(ctx, "INSERT INTO conversation VALUES ($1)", c.name)
	return err
}

// enter counts how many events work at once, and which come after a later one.
func (c *conversation) enter(number int) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside++
	c.worked++
	c.atOnce = max(c.atOnce, c.inside)
	if number <= c.last {
		c.passed++
	}
	c.last = max(c.last, number)
	c.begun <- number
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.inside--
	}
}

// arrive enqueues event 1, and event 2 while event 1 works.
func (c *conversation) arrive(ctx context.Context, q *queue, handle func(context.Context, *job) error) []error {
	q.start(ctx, handle)
	q.add(&job{number: 1})
	<-c.begun
	q.add(&job{number: 2})
	return q.drain()
}

// together enqueues two events. The first works until the second works, too.
func together(l *lock) func(context.Context, *conversation) []error {
	return func(ctx context.Context, c *conversation) []error {
		both := concurrent.NewBarrier(2)
		c.work = func(ctx context.Context, _ int) error {
			both.Arrive()
			return both.Wait(ctx)
		}
		handle := c.handle
		if l != nil {
			handle = l.around(c.handle)
		}
		return c.arrive(ctx, newQueue(8), handle)
	}
}

// overtaken enqueues event 2 while event 1 has the lock. Each time that event 2 finds the
// lock taken, the lock becomes free. An event that arrives at that moment takes it before the
// queue tries event 2 again.
func overtaken(ctx context.Context, c *conversation) []error {
	end, ended := make(chan struct{}), make(chan struct{}, c.events)
	c.work = func(_ context.Context, number int) error {
		if number != 2 {
			<-end
		}
		return nil
	}
	q, next := newQueue(8), 3
	handle := (&lock{expiry: time.Minute}).around(c.handle)
	return c.arrive(ctx, q, func(ctx context.Context, j *job) error {
		err := handle(ctx, j)
		switch {
		case !errors.Is(err, errTaken):
			ended <- struct{}{}
		case next <= c.events:
			end <- struct{}{}
			<-ended
			q.add(&job{number: next})
			<-c.begun
			if next++; next > c.events {
				close(end)
				<-ended
			}
		}
		return err
	})
}

// inTurn enqueues all events at once, in a queue that drops a job that fails once. The
// first event takes longer than its lease.
func inTurn(mutex *jobs.Mutex) func(context.Context, *conversation) []error {
	return func(ctx context.Context, c *conversation) []error {
		c.work = func(_ context.Context, number int) error {
			if number == 1 {
				time.Sleep(lease + time.Second)
			}
			return nil
		}
		q := newQueue(1)
		describe := func(j *job) jobs.Job {
			return jobs.Job{
				Kind: "webhook", ID: strconv.Itoa(j.number), Key: "conversation 7", Ticket: j.ticket,
				Pool: jobs.Pool{Workers: workers},
			}
		}
		for number := 1; number <= c.events; number++ {
			j := &job{number: number}
			ticket, err := mutex.Enqueue(ctx, describe(j))
			if err != nil {
				return []error{err}
			}
			j.ticket = ticket
			q.add(j)
		}
		q.start(ctx, jobs.Handle(mutex, describe, c.handle))
		return q.drain()
	}
}

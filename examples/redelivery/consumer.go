package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/internal/crash"
	"github.com/dibs-go/dibs/examples/internal/database"
	"github.com/dibs-go/dibs/jobs"
)

const (
	ackWait  = 2 * time.Second        // JetStream waits this long for a sign of life
	again    = 100 * time.Millisecond // the pause before a failed message is delivered again
	attempts = 5                      // a message may fail this often
)

// delivery is a message that a consumer has.
type delivery struct {
	jetstream.Msg
	attempt int // 1 + how often it failed, or its consumer crashed, as far as is known
}

// newMutex makes the mutex of publishers and consumers, with the same options.
func newMutex(client *dibs.Client, db *database.Database) (*jobs.Mutex, error) {
	return jobs.New(client, &jobs.Options{
		Once:       time.Hour,     // a second delivery comes sooner
		Transactor: db.Transactor, // the effect of a message and the note that it is done are committed together
		CrashGrace: time.Minute,   // many times AckWait
	})
}

// publish publishes a message with its place among those of its conversation.
func publish(ctx context.Context, js jetstream.JetStream, mutex *jobs.Mutex, subject, number string) error {
	ticket, err := mutex.Enqueue(ctx, jobs.Job{Kind: "webhook", ID: subject + " " + number, Key: subject})
	if err != nil {
		return err
	}
	message := nats.NewMsg(subject)
	message.Data = []byte(number)
	message.Header.Set("Dibs-Ticket", ticket)
	ack, err := js.PublishMsg(ctx, message, jetstream.WithMsgID(subject+" "+number))
	if err == nil && ack.Duplicate { // it was published already, with another ticket
		mutex.Cancel(ctx, ticket)
	}
	return err
}

// describe makes a job of a message. JetStream counts a requeued message as a delivery,
// so MaxDeliver cannot count failures. The key can: it knows how many of its holders in a
// row did not finish.
func describe(d *delivery) jobs.Job {
	j := jobs.Job{
		Kind: "webhook", ID: d.Headers().Get(jetstream.MsgIDHeader),
		Key: d.Subject(), Ticket: d.Headers().Get("Dibs-Ticket"),
		Final:   func(error) bool { return d.attempt >= attempts },
		RetryIn: func(error) time.Duration { return again },
	}
	if m, err := d.Metadata(); err == nil {
		j.Due, j.Tries = m.Timestamp, int(m.NumDelivered) //nolint:gosec // it is not delivered 2^63 times
	}
	return j
}

// consume is what a consumer's process does.
func consume(ctx context.Context, way, url, name string) error {
	crash.Follow()
	db, err := database.Join(ctx, name)
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, d *delivery) error { return effect(ctx, db, db, d, time.Minute) }
	if way == "mutex" {
		client, err := dibs.New(db.Store, &dibs.Options{TTL: 2 * time.Second})
		if err != nil {
			return err
		}
		mutex, err := newMutex(client, db)
		if err != nil {
			return err
		}
		handle = jobs.Handle(mutex, describe, func(ctx context.Context, d *delivery) error {
			if r, ok := jobs.FromContext(ctx); ok {
				d.attempt = 1 + r.Abandoned
			}
			tx, ok := db.Tx(ctx)
			if !ok {
				return errors.New("no transaction")
			}
			return effect(ctx, tx, db, d, 200*time.Millisecond)
		})
	}
	conn, err := nats.Connect(url)
	if err != nil {
		return err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(ctx, stream, way)
	if err != nil {
		return err
	}
	for {
		message, err := consumer.Next(jetstream.FetchMaxWait(5 * time.Second))
		if errors.Is(err, nats.ErrTimeout) {
			continue
		}
		if err != nil {
			return err
		}
		if err := answer(ctx, &delivery{Msg: message}, handle); err != nil {
			return err
		}
	}
}

// answer handles a message, and reports the result to JetStream.
func answer(ctx context.Context, d *delivery, handle func(context.Context, *delivery) error) error {
	stop := alive(ctx, d)
	err := handle(ctx, d)
	stop()
	requeue, ok := errors.AsType[*jobs.RequeueError](err)
	switch {
	case err == nil:
		crash.Point() // done, but JetStream does not know
		return d.Ack()
	case ok:
		return d.NakWithDelay(requeue.After)
	case d.attempt >= attempts:
		return d.TermWithReason(err.Error())
	default:
		return d.NakWithDelay(again)
	}
}

// alive tells JetStream that a consumer has the message, whether it waits or runs.
func alive(ctx context.Context, d *delivery) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	go func() {
		for ticker := time.NewTicker(ackWait / 8); ; {
			select {
			case <-ticker.C:
				_ = d.InProgress() // the next one may arrive
			case <-ctx.Done():
				ticker.Stop()
				return
			}
		}
	}()
	return stop
}

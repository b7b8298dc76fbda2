package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/internal/concurrent"
	"github.com/dibs-go/dibs/examples/internal/crash"
	"github.com/dibs-go/dibs/examples/internal/database"
)

// broker is a NATS server in this process, with a connection and a stream.
type broker struct {
	folder string
	server *server.Server
	conn   *nats.Conn
	js     jetstream.JetStream
}

func start(ctx context.Context) (b *broker, err error) {
	b = &broker{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stop())
		}
	}()
	if b.folder, err = os.MkdirTemp("", "dibs-example-"); err != nil {
		return b, err
	}
	b.server, err = server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: b.folder, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return b, err
	}
	b.server.Start()
	if !b.server.ReadyForConnections(time.Minute) {
		return b, errors.New("the NATS server does not start")
	}
	if b.conn, err = nats.Connect(b.server.ClientURL()); err != nil {
		return b, err
	}
	if b.js, err = jetstream.New(b.conn); err != nil {
		return b, err
	}
	_, err = b.js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}})
	return b, err
}

func (b *broker) stop() error {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	return os.RemoveAll(b.folder)
}

// deliver publishes the messages of some conversations and lets consumers have them
// until none is left.
func (b *broker) deliver(ctx context.Context, db *database.Database, way, conversations string, each int) error {
	consumer, err := b.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: way, FilterSubject: stream + "." + way + ".*",
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		MaxDeliver: -1, // each requeued message counts as a delivery
	})
	if err != nil {
		return err
	}
	client, err := dibs.New(db.Store, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	mutex, err := newMutex(client, db)
	if err != nil {
		return err
	}
	defer mutex.Close()
	for number := range each {
		for _, conversation := range conversations {
			subject := fmt.Sprintf("%s.%s.%c", stream, way, conversation)
			if err := publish(ctx, b.js, mutex, subject, strconv.Itoa(number+1)); err != nil {
				return err
			}
		}
	}

	if err := crash.Kill(ctx, way, b.conn.ConnectedUrl(), db.Name); err != nil {
		return err
	}
	err = concurrent.Run(ctx, consumers+1, func(ctx context.Context, i int) error {
		if i < consumers {
			return crash.Run(ctx, way, b.conn.ConnectedUrl(), db.Name)
		}
		for {
			info, err := consumer.Info(ctx)
			if err != nil {
				return err
			}
			if info.NumPending == 0 && info.NumAckPending == 0 {
				return errNone // which ends the consumers
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	if errors.Is(err, errNone) {
		return nil
	}
	return err
}

var errNone = errors.New("no message is left")

// Redelivery: NATS JetStream delivers a message again if its consumer does not answer,
// because it must deliver each message at least once. Three consumers share the messages
// of several conversations. One of them is killed (SIGKILL) after the effect of a message
// and before its acknowledgement. Another message fails at first.
//
// A consumer that only acknowledges at the end does the first message twice. The message
// that failed comes again after the next message of its conversation has passed it.
//
// Behind jobs.Handle neither happens. A message takes its place when it is published, its
// ticket travels in a header, and a message that fails keeps its place. The effect of a
// message is committed together with the note that it is done, and the second delivery
// finds the note. consumer.go is the whole consumer, and docs/guides/jobs.md has the
// choices.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/examples/internal/database"
)

const (
	stream    = "webhooks"
	consumers = 3
)

func main() {
	work := run
	if len(os.Args) == 4 { // by package crash
		work = func(ctx context.Context) error { return consume(ctx, os.Args[1], os.Args[2], os.Args[3]) }
	}
	if err := work(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "redelivery:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := database.Make(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "CREATE TABLE effect (conversation text NOT NULL, number int NOT NULL, place int NOT NULL)"); err != nil {
		return err
	}
	broker, err := start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.stop()) }()

	fmt.Printf("%d consumers of JetStream, of which one is killed before it acknowledges, on %v.\n\n", consumers, db.Dialect)
	fmt.Println("                     messages  effects  twice  passed  lost")
	for _, way := range []struct {
		name, label, conversations string
		each                       int
	}{
		{"ack", "ack when it is done", "AB", 2},
		{"mutex", "behind jobs.Handle", "ABCD", 10},
	} {
		if err := broker.deliver(ctx, db, way.name, way.conversations, way.each); err != nil {
			return fmt.Errorf("%s: %w", way.label, err)
		}
		saw, err := look(ctx, db)
		if err != nil {
			return err
		}
		messages := len(way.conversations) * way.each
		lost := messages - (saw.effects - saw.twice)
		fmt.Printf("%-20s %8d %8d %6d %7d %5d\n", way.label, messages, saw.effects, saw.twice, saw.passed, lost)
		if way.name == "mutex" && (saw.twice != 0 || saw.passed != 0 || lost != 0) {
			return errors.New("that is not every message once, in the order of its conversation")
		}
	}
	return nil
}

// effect is what a message does: it adds an entry to its conversation. The first delivery
// of the first message of B fails, because it takes too long: it waits until another
// message has passed it, or patience is over.
func effect(ctx context.Context, tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, db *database.Database, d *delivery, patience time.Duration) error {
	number, err := strconv.Atoi(string(d.Data()))
	if err != nil {
		return err
	}
	m, err := d.Metadata()
	if err != nil {
		return err
	}
	if strings.HasSuffix(d.Subject(), ".B") && number == 1 && m.NumDelivered == 1 {
		passed := false
		for start := time.Now(); err == nil && !passed && time.Since(start) < patience; time.Sleep(10 * time.Millisecond) {
			err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM effect WHERE conversation = $1)", d.Subject()).Scan(&passed)
		}
		return errors.Join(err, errors.New("it takes too long"))
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO effect
		SELECT CAST($1 AS text), CAST($2 AS int), count(*) FROM effect WHERE conversation = $1`, d.Subject(), number)
	return err
}

// sight is what the messages did.
type sight struct{ effects, twice, passed int }

// look returns what the messages did, and deletes it.
func look(ctx context.Context, db *database.Database) (saw sight, err error) {
	rows, err := db.QueryContext(ctx, "SELECT conversation, number FROM effect ORDER BY conversation, place")
	if err != nil {
		return saw, err
	}
	defer rows.Close()
	done, last := map[string]bool{}, map[string]int{}
	for rows.Next() {
		var conversation string
		var number int
		if err := rows.Scan(&conversation, &number); err != nil {
			return saw, err
		}
		id := conversation + " " + strconv.Itoa(number)
		saw.effects++
		switch {
		case done[id]:
			saw.twice++
		case number < last[conversation]:
			saw.passed++
		}
		done[id], last[conversation] = true, max(number, last[conversation])
	}
	if err := rows.Err(); err != nil {
		return saw, err
	}
	_, err = db.ExecContext(ctx, "DELETE FROM effect")
	return saw, err
}

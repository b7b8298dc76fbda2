// Lesson-session: a pupil's browser chooses the UUID of a lesson session and creates
// it with PUT /sessions/{uuid}. Fifty such requests come at once, by retries, a double
// click and two tabs. There must be one row, and 204 for all.
//
// SELECT and then INSERT makes fifty rows. A unique index makes one row, but all requests
// have done the work by then: fifty rooms are opened at the video service, and 49 of
// them are paid for and thrown away. With a key, one request does the work, and the
// others need not wait: they skip (TryDo). What may they answer? 204 says that the
// session is there. It is not there yet, and if the request that makes it fails, it
// never will be. So a request that skips answers "not yet", and its client asks again.
// Then 204 is true.
//
// The index stays as a safety net, which the key makes almost unnecessary.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/internal/concurrent"
	"github.com/dibs-go/dibs/examples/internal/database"
)

const (
	callers = 50
	path    = "/sessions/6f1c7a52-0d0e-4b3e-9a57-2f6f0f6a9b11"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "lesson-session:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := database.Make(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	client, err := dibs.New(db.Store, &dibs.Options{Timeout: time.Minute}) // for the busiest laptop
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()

	fmt.Printf("%d requests create one session, at once, on %v.\n\n", callers, db.Dialect)
	fmt.Println("                          rooms  rows  204 at once  of these untrue  not yet, then 204")
	for _, way := range []struct {
		name, table, id string
		client          *dibs.Client
		skip            int
		cure            bool
	}{
		{name: "look, then insert", table: "one", id: "id text NOT NULL"},
		{name: "unique index alone", table: "two", id: "id text PRIMARY KEY"},
		{name: "dibs, a skip says 204", table: "three", id: "id text PRIMARY KEY", client: client, skip: 204},
		{name: "dibs, a skip says 409", table: "four", id: "id text PRIMARY KEY", client: client, skip: 409, cure: true},
	} {
		if _, err := db.ExecContext(ctx, "CREATE TABLE "+way.table+" ("+way.id+")"); err != nil {
			return err
		}
		saw, err := rush(ctx, &sessions{db: db.DB, table: way.table, client: way.client, skip: way.skip})
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		fmt.Printf("%-24s %6d %5d %12d %16d %18d\n", way.name, saw.rooms.Load(), saw.rows, saw.atOnce.Load(), saw.untrue.Load(), saw.later.Load())
		if way.cure && (saw.rooms.Load() != 1 || saw.rows != 1 || saw.untrue.Load() != 0 || saw.atOnce.Load()+saw.later.Load() != callers) {
			return errors.New("that is not one room, one row and a true 204 for all")
		}
	}
	return nil
}

// sight is what the clients of a rush saw.
type sight struct {
	rooms, atOnce, untrue, later atomic.Int64
	rows                         int
}

// rush sends all requests at once. Opening a room takes until every other request has
// asked for a room, too, or has been answered.
func rush(ctx context.Context, s *sessions) (*sight, error) {
	saw, barrier := &sight{}, concurrent.NewBarrier(callers)
	s.room = func(ctx context.Context) error {
		saw.rooms.Add(1)
		barrier.Arrive()
		return barrier.Wait(ctx)
	}
	server := httptest.NewServer(s.handler())
	defer server.Close()
	err := concurrent.Run(ctx, callers, func(ctx context.Context, _ int) error {
		status, err := ask(ctx, http.MethodPut, server.URL+path)
		count := &saw.atOnce
		if status == http.StatusConflict {
			count = &saw.later
			barrier.Arrive()
		}
		for err == nil && status == http.StatusConflict {
			time.Sleep(time.Second) // the time in Retry-After
			status, err = ask(ctx, http.MethodPut, server.URL+path)
		}
		if err != nil {
			return err
		}
		if status != http.StatusNoContent {
			return fmt.Errorf("PUT was answered %d", status)
		}
		count.Add(1)
		if status, err = ask(ctx, http.MethodGet, server.URL+path); err != nil {
			return err
		}
		if status != http.StatusOK {
			saw.untrue.Add(1)
		}
		barrier.Arrive()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return saw, s.db.QueryRowContext(ctx, "SELECT count(*) FROM "+s.table).Scan(&saw.rows)
}

// ask sends a request and returns the status of its answer.
func ask(ctx context.Context, method, url string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

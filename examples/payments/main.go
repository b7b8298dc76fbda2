// Payments: a client pays, the server enters the payment in the ledger, and is killed
// (SIGKILL) before it answers. The client does the right thing: it sends the request
// again, with the same Idempotency-Key, to the server that was started meanwhile.
//
// If the key is in one statement and the payment in another, the new server cannot know
// what the old one did, and books again. With both in one transaction it need not know:
// the payment and its answer were committed together, or neither was. Here the database
// rolled the first entry back when the server died. So the ledger has one entry, and the
// client gets the same answer each time it asks.
// docs/start/database.md says what this costs, and what it does not cover.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"

	"github.com/dibs-go/dibs/examples/internal/crash"
	"github.com/dibs-go/dibs/examples/internal/database"
	"github.com/dibs-go/dibs/idempotency/retry"
)

const amount = 990

func main() {
	work := run
	if len(os.Args) == 3 { // by crash.Restart
		work = func(ctx context.Context) error { return serve(ctx, os.Args[1], os.Args[2]) }
	}
	if err := work(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "payments:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := database.Make(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for _, table := range []string{
		"CREATE TABLE ledger (way text NOT NULL, receipt text NOT NULL, amount int NOT NULL)",
		"CREATE TABLE answer (key text PRIMARY KEY, receipt text NOT NULL)",
	} {
		if _, err := db.ExecContext(ctx, table); err != nil {
			return err
		}
	}
	fmt.Printf("A client pays %d. The server books it and is killed before it answers, on %v.\n\n", amount, db.Dialect)
	for _, way := range []string{"apart", "together"} {
		if err := pay(ctx, db, way); err != nil {
			return fmt.Errorf("key and payment %s: %w", way, err)
		}
	}
	return nil
}

// pay lets a client pay at a server that is killed, and ask once more.
func pay(ctx context.Context, db *database.Database, way string) error {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer listener.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	var servers sync.WaitGroup
	servers.Go(func() { cancel(crash.Restart(ctx, listener, way, db.Name)) })
	defer servers.Wait()
	defer cancel(nil)

	// One call: the transport sends the request again if no answer comes, and if the
	// answer is that the first request may still run.
	transport, err := retry.New(&retry.Options{MaxTries: 100, Budget: 1})
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String() + "/payments"
	answer, err := post(ctx, transport, url, "order of "+way)
	if err != nil {
		return err
	}
	again, err := post(ctx, transport, url, "order of "+way)
	if err != nil {
		return err
	}

	var entries, paid int
	var receipt string
	err = db.QueryRowContext(ctx, "SELECT count(*), COALESCE(sum(amount), 0), COALESCE(max(receipt), '') FROM ledger WHERE way = $1", way).Scan(&entries, &paid, &receipt)
	if err != nil {
		return err
	}
	same := map[bool]string{true: "the same answer, byte for byte", false: "another answer"}[answer == again]
	fmt.Printf("key and payment %-10s entries in the ledger: %d, paid: %4d; asked again: %s\n", way, entries, paid, same)
	if way == "together" && (entries != 1 || answer != again || !strings.Contains(answer, receipt)) {
		return fmt.Errorf("that is not one entry and its answer; the receipt is %s, and the answers are\n%s\n%s", receipt, answer, again)
	}
	return nil
}

// post pays, and returns the whole answer without Date and the mark of a replay.
func post(ctx context.Context, transport http.RoundTripper, url, order string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("amount=990"))
	if err != nil {
		return "", err
	}
	r.Header.Set("Idempotency-Key", `"`+order+`"`)
	r.Header.Set("Authorization", "Bearer shop-1") // whose key it is
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return "", errors.Join(context.Cause(ctx), err)
	}
	defer response.Body.Close()
	response.Header.Del("Date")
	response.Header.Del("Idempotent-Replayed")
	text, err := httputil.DumpResponse(response, true)
	return string(text), err
}

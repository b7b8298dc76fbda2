package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
)

// keyVar is the key of a child that books.
const keyVar = "SQLITESTORE_TEST_KEY"

// bookTTL is the lease under which children book that are killed.
const bookTTL = 2 * time.Second

// openLedger opens a shared file with a ledger, as an application does.
func openLedger(path string) (s *Store, db *sql.DB, c *dibs.Client, err error) {
	if s, err = Open(path, &Options{Shared: true, LockWait: time.Minute}); err != nil {
		return nil, nil, nil, err
	}
	if db, err = s.OpenDB(); err != nil {
		return nil, nil, nil, err
	}
	if _, err = db.ExecContext(context.Background(), "CREATE TABLE IF NOT EXISTS ledger (k TEXT NOT NULL, entry TEXT NOT NULL)"); err != nil {
		return nil, nil, nil, err
	}
	c, err = dibs.New(s, nil)
	return s, db, c, err
}

// bookOnce books an entry that nobody else can have made, and returns it.
func bookOnce(c *dibs.Client, t dibs.Transactor, k string, ttl time.Duration) (string, error) {
	return OnceTx(context.Background(), c, t, k, &dibs.OnceOptions{TTL: ttl}, func(ctx context.Context, tx *sql.Tx) (string, error) {
		return bookEntry(ctx, tx, k)
	})
}

func bookEntry(ctx context.Context, tx *sql.Tx, k string) (string, error) {
	entry := dibs.NewToken().ID()
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (k, entry) VALUES (?, ?)", k, entry)
	return entry, err
}

// childBook books once under a key, and is killed at any moment between the claim
// and a while after the answer, which it prints.
func childBook(path string, _ io.Reader) error {
	s, db, c, err := openLedger(path)
	if err != nil {
		return err
	}
	t := s.Transactions(db)
	start := time.Now()
	if _, err := bookOnce(c, t, "warm-up "+os.Getenv(keyVar), time.Minute); err != nil {
		return err
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	time.AfterFunc(rand.N(time.Since(start)*5/4), func() { _ = self.Kill() })
	entry, err := bookOnce(c, t, os.Getenv(keyVar), bookTTL)
	for errors.Is(err, dibs.ErrLost) { // on a slow machine
		entry, err = bookOnce(c, t, os.Getenv(keyVar), bookTTL)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, entry)
	select {}
}

// Two hundred processes are killed at a random point between claim and answer. Every
// key ends with one row and one answer, the same each time.
func TestProcessesAreKilledInTransactions(t *testing.T) {
	t.Parallel()
	path := testFile(t)
	s, db, c, err := openLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), db.Close(), s.Close()); err != nil {
			t.Error(err)
		}
		checkSound(t, path)
	})
	const runs = 200
	printed := make([]string, runs)
	var running sync.WaitGroup
	free := make(chan struct{}, 3)
	for i := range runs {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			printed[i] = bookAndDie(t, path, fmt.Sprint("key ", i))
		})
	}
	running.Wait()
	rows := func(k string) (n int, entry string) {
		err := db.QueryRowContext(t.Context(), "SELECT count(*), coalesce(max(entry), '') FROM ledger WHERE k = ?", k).Scan(&n, &entry)
		if err != nil {
			t.Fatal(err)
		}
		return n, entry
	}
	booked, answered := 0, 0
	for i := range runs {
		n, entry := rows(fmt.Sprint("key ", i))
		if n > 0 {
			booked++
		}
		if printed[i] != "" {
			answered++
			if printed[i] != entry || n != 1 {
				t.Errorf("key %d was answered %q, and the ledger has %d rows, %q", i, printed[i], n, entry)
			}
		}
	}
	tr := s.Transactions(db)
	for i := range runs {
		running.Go(func() {
			k := fmt.Sprint("key ", i)
			for range 3 {
				answer, err := bookOnce(c, tr, k, time.Minute)
				if n, entry := rows(k); err != nil || n != 1 || entry != answer {
					t.Errorf("%s is answered %q, %v, and the ledger has %d rows, %q", k, answer, err, n, entry)
				}
			}
		})
	}
	running.Wait()
	t.Logf("of %d killed runs %d had committed, %d of those had answered", runs, booked, answered)
	if booked == 0 || booked == runs {
		t.Errorf("of %d runs that were killed %d had committed; that is no random point", runs, booked)
	}
}

// bookAndDie returns what a child printed before it was killed.
func bookAndDie(t *testing.T, path, key string) string {
	p := prepareChild(t, "book", path)
	p.cmd.Env = append(p.cmd.Env, keyVar+"="+key)
	var printed bytes.Buffer
	p.cmd.Stdout = &printed
	if err := p.cmd.Run(); p.cmd.ProcessState == nil || p.cmd.ProcessState.Exited() {
		t.Errorf("the child was not killed: %v, %s", err, &p.errors)
	}
	return strings.TrimSpace(printed.String())
}

const (
	servedKeys     = 20
	servedRequests = 400
)

// childServe has requests guarded that book, and prints what each was answered.
func childServe(path string, _ io.Reader) error {
	s, db, c, err := openLedger(path)
	if err != nil {
		return err
	}
	m, err := idempotency.New(c, &idempotency.Options{Transactor: s.Transactions(db), Wait: 20 * time.Second})
	if err != nil {
		return err
	}
	handler := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, ok := Tx(r.Context())
		if !ok {
			http.Error(w, "no transaction", http.StatusServiceUnavailable)
			return
		}
		k := r.Header.Get("Idempotency-Key")
		entry, err := bookEntry(r.Context(), tx, k)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case rand.N(3) == 0:
			http.Error(w, "no luck", http.StatusInternalServerError) // rolled back, tried again
		default:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, entry)
		}
	}))
	var requests sync.WaitGroup
	var mu sync.Mutex
	for range 16 {
		requests.Go(func() {
			for range servedRequests / 16 {
				k := fmt.Sprint("key-", rand.N(servedKeys))
				r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
				r.Header.Set("Idempotency-Key", k)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				mu.Lock()
				fmt.Fprintln(os.Stdout, k, w.Code, strings.ReplaceAll(w.Body.String(), "\n", " "))
				mu.Unlock()
			}
		})
	}
	requests.Wait()
	return errors.Join(c.Close(), db.Close(), s.Close())
}

// Two servers are sent the same requests again and again; a third of their handlers
// fail after they have written.
func TestProcessesServe(t *testing.T) {
	path := testFile(t)
	var servers []*process
	var printed [2]bytes.Buffer
	for i := range printed {
		p := prepareChild(t, "serve", path)
		p.cmd.Stdout = &printed[i]
		p.launch(t)
		servers = append(servers, p)
	}
	for _, p := range servers {
		p.end(t)
	}
	answers := map[string]map[string]bool{}
	created := 0
	for line := range strings.Lines(printed[0].String() + printed[1].String()) {
		var k, body string
		var code int
		if _, err := fmt.Sscan(line, &k, &code, &body); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		switch {
		case code == http.StatusCreated:
			created++
			if answers[k] == nil {
				answers[k] = map[string]bool{}
			}
			answers[k][body] = true
		case code != http.StatusInternalServerError || body != "no":
			t.Errorf("a request was answered %q", line)
		}
	}
	if created < servedRequests {
		t.Errorf("only %d of %d requests succeeded", created, 2*servedRequests)
	}
	s, db, c, err := openLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer db.Close()
	defer c.Close()
	for k, given := range answers {
		var n int
		var entry string
		if err := db.QueryRowContext(t.Context(), "SELECT count(*), max(entry) FROM ledger WHERE k = ?", k).Scan(&n, &entry); err != nil {
			t.Fatal(err)
		}
		if n != 1 || len(given) != 1 || !given[entry] {
			t.Errorf("%s has %d rows, %q, and was answered %v", k, n, entry, given)
		}
	}
	t.Logf("%d requests under %d keys, %d answered 201", 2*servedRequests, len(answers), created)
}

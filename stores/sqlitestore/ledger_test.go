package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// ledgerClient are the options of clients beside a ledger. Their keys are those of lock. No
// machine is too slow for their calls.
var ledgerClient = &dibs.Options{Namespace: "test", Timeout: testkit.Limit}

// openApplication opens a shared file with a ledger, as an application does.
func openApplication(path string) (s *Store, db *sql.DB, c *dibs.Client, err error) {
	if s, err = Open(path, &Options{Shared: true, LockWait: testkit.Limit}); err != nil {
		return nil, nil, nil, err
	}
	if db, err = s.OpenDB(); err != nil {
		return nil, nil, nil, err
	}
	c, err = dibs.New(s, ledgerClient)
	return s, db, c, err
}

// openLedger makes a ledger in a shared file.
func openLedger(t testing.TB, path string, clock clock) (*Store, *sql.DB, *dibs.Client) {
	t.Helper()
	s := openTest(t, path, &Options{Shared: true}, clock)
	db, err := s.OpenDB()
	testkit.Must(t, err)
	c, err := dibs.New(s, ledgerClient)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, errors.Join(c.Close(), db.Close())) })
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS ledger (k TEXT NOT NULL, entry TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return s, db, c
}

// bookOnce books a unique entry, and returns it.
func bookOnce(c *dibs.Client, t store.Transactor, k string, ttl time.Duration) (string, error) {
	return OnceTx(context.Background(), c, t, k, &dibs.OnceOptions{TTL: ttl}, func(ctx context.Context, tx *sql.Tx) (string, error) {
		return bookEntry(ctx, tx, k)
	})
}

func bookEntry(ctx context.Context, tx *sql.Tx, k string) (string, error) {
	entry := store.NewToken().ID()
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (k, entry) VALUES (?, ?)", k, entry)
	return entry, err
}

const (
	servedKeys     = 20
	servedRequests = 400
	// failEvery is which of a process's handlers fail: the third, the sixth, and so on.
	failEvery = 3
)

// childServe has requests guarded that book, and prints what each was answered.
func childServe(args []string) error {
	s, db, c, err := openApplication(args[0])
	if err != nil {
		return err
	}
	m, err := idempotency.New(c, &idempotency.Options{Transactor: s.Transactions(db), Wait: testkit.Limit, StoreTimeout: testkit.Limit})
	if err != nil {
		return err
	}
	var served atomic.Int32
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
		case served.Add(1)%failEvery == 0:
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
	_, db, _ := openLedger(t, path, hostClock)
	var servers []*failpoint.Child
	var printed [2]bytes.Buffer
	for i := range printed {
		cmd := testkit.Child("serve", path)
		cmd.Stdout = &printed[i]
		servers = append(servers, failpoint.Start(t, "", cmd))
	}
	for _, p := range servers {
		p.End()
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
	if want := 2 * (servedRequests - servedRequests/failEvery); created < want {
		t.Errorf("only %d requests succeeded, not %d", created, want)
	}
	for k, given := range answers {
		var n int
		var entry string
		testkit.Must(t, db.QueryRowContext(t.Context(), "SELECT count(*), max(entry) FROM ledger WHERE k = ?", k).Scan(&n, &entry))
		if n != 1 || len(given) != 1 || !given[entry] {
			t.Errorf("%s has %d rows, %q, and was answered %v", k, n, entry, given)
		}
	}
	t.Logf("%d requests under %d keys, %d answered 201", 2*servedRequests, len(answers), created)
}

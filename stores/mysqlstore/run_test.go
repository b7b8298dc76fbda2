package mysqlstore

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

const (
	servedKeys     = 60
	servedRequests = 480
)

// TestServed: two servers get the same requests again and again. Some handlers fail after they have
// written, some deadlock, and the server ends connections. Each key ends with one entry, and all
// answers are the same.
func TestServed(t *testing.T) {
	t.Parallel()
	for name, get := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, get(), "?interpolateParams=true")
			b.query(t, "ALTER TABLE "+b.ledger+" ADD COLUMN answer VARCHAR(100), ADD KEY (what); "+b.entry("left")+"; "+b.entry("right"))
			var handlers []http.Handler
			for range 2 {
				s := open(t, b.server.URL(), &Options{Prefix: b.s.options.Prefix})
				once, err := idempotency.New(sqltest.Client(t, s, nil), &idempotency.Options{Transactor: s.Transactions(b.db, nil), Wait: 30 * time.Second})
				testkit.Must(t, err)
				handlers = append(handlers, once.Wrap(http.HandlerFunc(b.serve)))
			}
			var mu sync.Mutex
			answers := map[string]map[string]bool{}
			codes := map[int]int{}
			var requests sync.WaitGroup
			for n := range 16 {
				requests.Go(func() {
					for range servedRequests / 16 {
						k := fmt.Sprint("key-", rand.N(servedKeys))
						r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
						r.Header.Set("Idempotency-Key", k)
						w := httptest.NewRecorder()
						handlers[n%2].ServeHTTP(w, r)
						mu.Lock()
						if codes[w.Code]++; w.Code == http.StatusCreated {
							if answers[k] == nil {
								answers[k] = map[string]bool{}
							}
							answers[k][w.Body.String()] = true
						}
						mu.Unlock()
					}
				})
			}
			requests.Wait()
			t.Logf("%v", codes)
			for _, row := range b.query(t, "SELECT what, COUNT(*), MIN(answer) FROM "+b.ledger+" WHERE what LIKE 'key-%' GROUP BY what") {
				given := answers[row[0]]
				if row[1] != "1" || len(given) > 1 || len(given) == 1 && !given[row[2]] {
					t.Errorf("%s has %s entries, %q, and was answered %v", row[0], row[1], row[2], given)
				}
				delete(answers, row[0])
			}
			if len(answers) > 0 {
				t.Errorf("these were answered, and have no entry: %v", answers)
			}
		})
	}
}

// serve books a request, and has some luck or none.
func (b *bank) serve(w http.ResponseWriter, r *http.Request) {
	fail := func(err error) { http.Error(w, err.Error(), http.StatusInternalServerError) }
	tx, ok := Tx(r.Context())
	if !ok {
		fail(errors.New("no transaction"))
		return
	}
	ctx, k := r.Context(), r.Header.Get("Idempotency-Key")
	rows := []string{"left", "right"}
	if rand.N(2) == 0 {
		rows = []string{"right", "left"}
	}
	answer := fmt.Sprint(k, " ", rand.Int64())
	_, err := tx.ExecContext(ctx, "INSERT INTO "+b.ledger+" (what, answer) VALUES (?, ?)", k, answer)
	if rand.N(2) == 0 { // these deadlock
		for _, row := range rows {
			if err == nil {
				_, err = tx.ExecContext(ctx, b.touch(row))
			}
		}
	}
	luck := rand.N(10)
	if err == nil && luck == 0 {
		_, err = tx.ExecContext(ctx, "KILL CONNECTION_ID()")
	}
	switch {
	case err != nil:
		fail(err)
	case luck < 3:
		fail(errors.New("no luck")) // rolled back, and tried again
	default:
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	}
}

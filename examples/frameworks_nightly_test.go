//go:build nightly

package examples

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/frameworks"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
	"github.com/dibs-go/dibs/stores/pgstore"
)

// newGuard makes the middleware over a store, which ends with the test.
func newGuard(t *testing.T, store dibs.Store, transactor dibs.Transactor) *idempotency.Middleware {
	t.Helper()
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	guard, err := idempotency.New(client, &idempotency.Options{Transactor: transactor, RequireKey: true})
	testkit.Must(t, err)
	return guard
}

// checkCharges sends a charge twice, and one that the service refuses twice.
func checkCharges(t *testing.T, service http.Handler) {
	t.Helper()
	server := httptest.NewServer(service)
	defer server.Close()
	send := func(key, amount string) (status int, answer string, replayed bool) {
		r := testkit.Request(t.Context(), t, http.MethodPost, server.URL+"/charges", strings.NewReader(amount))
		r.Header.Set("Authorization", "Bearer shop-3")
		r.Header.Set("Idempotency-Key", key)
		response, err := server.Client().Do(r)
		testkit.Must(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		testkit.Must(t, err)
		return response.StatusCode, string(text), response.Header.Get("Idempotent-Replayed") == "true"
	}
	for _, c := range []struct {
		key, amount string
		status      int
		answer      string
	}{{"order-17", "700", http.StatusCreated, "charge 1"}, {"order-18", "-5", http.StatusUnprocessableEntity, ""}} {
		status, first, replayed := send(c.key, c.amount)
		if status != c.status || replayed || c.answer != "" && first != c.answer {
			t.Errorf("%s is answered %d %q, a replay: %v", c.amount, status, first, replayed)
		}
		status, again, replayed := send(c.key, c.amount)
		if status != c.status || !replayed || again != first {
			t.Errorf("%s again is answered %d %q, a replay: %v; first it was %q", c.amount, status, again, replayed, first)
		}
	}
}

// TestRouters: a router behind the guard, or with the guard as its middleware, runs a
// request once, and replays its refusals too.
func TestRouters(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*idempotency.Middleware, func(string) (string, bool)) http.Handler{
		"gin": frameworks.Gin, "echo": frameworks.Echo, "chi": frameworks.Chi,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := memstore.New(nil)
			testkit.Must(t, err)
			t.Cleanup(func() { _ = store.Close() })
			charges := 0
			checkCharges(t, serve(newGuard(t, store, nil), func(amount string) (string, bool) {
				if strings.HasPrefix(amount, "-") {
					return "", false
				}
				charges++
				return fmt.Sprint("charge ", charges), true
			}))
			if charges != 1 {
				t.Errorf("%d charges were made", charges)
			}
		})
	}
}

// TestQueries: what GORM and sqlc write is committed with the answer, once.
func TestQueries(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gorm", "sqlc"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			postgres().Query("CREATE DATABASE " + name)
			t.Cleanup(func() { postgres().Query("DROP DATABASE " + name + " WITH (FORCE)") }) // for -count
			pool, err := pgxpool.New(t.Context(), strings.Replace(postgres().URL(), "/postgres?", "/"+name+"?", 1))
			testkit.Must(t, err)
			t.Cleanup(pool.Close)
			store, err := pgstore.New(t.Context(), pool, &pgstore.Options{Migrate: true})
			testkit.Must(t, err)
			t.Cleanup(func() { _ = store.Close() })
			const table = "CREATE TABLE charges (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount text CHECK (amount::int > 0))"
			if _, err := pool.Exec(t.Context(), table); err != nil {
				t.Fatal(err)
			}
			db := stdlib.OpenDBFromPool(pool)
			t.Cleanup(func() { _ = db.Close() })
			if name == "sqlc" {
				checkCharges(t, newGuard(t, store, store.Transactions(pool, nil)).Wrap(http.HandlerFunc(frameworks.Sqlc)))
			} else {
				orm, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: db}), nil)
				testkit.Must(t, err)
				checkCharges(t, newGuard(t, store, store.SQLTransactions(db, nil)).Wrap(frameworks.GORM(orm)))
			}
			var charges int
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM charges").Scan(&charges); err != nil || charges != 1 {
				t.Errorf("%d charges are in the table, %v", charges, err)
			}
		})
	}
}

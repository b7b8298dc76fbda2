package sqltest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// KillAt starts the child "sqltest" with these arguments, and kills it at the point.
func KillAt(t testing.TB, point string, args ...string) {
	t.Helper()
	child := failpoint.Start(t, point, testkit.Child("sqltest", args...))
	child.Await()
	child.Kill()
}

// childAnswer is the answer of a child's run.
const childAnswer = "by a child"

// RunOnce is the child: it runs once under the key "k", and stops at a failpoint.
func RunOnce(ctx context.Context, s store.Store, tr store.Transactor, ledger string, exec func(ctx context.Context, sql string) error) error {
	client, err := dibs.New(s, &dibs.Options{TTL: time.Hour, Timeout: testkit.Limit})
	if err != nil {
		return err
	}
	_, err = dibs.OnceIn(ctx, client, stopping{tr}, "k", nil, func(ctx context.Context) (string, error) {
		own := store.WithTransaction(ctx, store.TransactionFrom(ctx).(stoppingTransaction).Transaction)
		err := exec(own, fmt.Sprintf("INSERT INTO %s (what) VALUES ('k')", ledger))
		return childAnswer, err
	})
	failpoint.Reach("answered")
	return err
}

// stopping is a Transactor whose transactions reach failpoints.
type stopping struct{ store.Transactor }

func (s stopping) Begin(ctx context.Context) (store.Transaction, error) {
	failpoint.Reach("claimed")
	tx, err := s.Transactor.Begin(ctx)
	return stoppingTransaction{tx}, err
}

type stoppingTransaction struct{ store.Transaction }

func (s stoppingTransaction) Commit(ctx context.Context, x store.Settlement) error {
	failpoint.Reach("before COMMIT")
	err := s.Transaction.Commit(ctx, x)
	failpoint.Reach("after COMMIT")
	return err
}

// Killed kills processes that run once at each failpoint. Then there is one entry and one answer,
// which is the killed process's if that had committed. The arguments are those of a child that
// calls RunOnce for the bank.
func Killed(t *testing.T, open func(t *testing.T) *Bank, args func(b *Bank) []string) {
	for point, committed := range map[string]bool{"claimed": false, "before COMMIT": false, "after COMMIT": true, "answered": true} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			KillAt(t, point, args(b)...)
			statements(t, b.DB, b.Names(b.Store, b.RunOut))
			want := "by the next one"
			if committed {
				want = childAnswer
			}
			for range 2 {
				got, err := dibs.OnceIn(t.Context(), b.Client, b.Transactor, "k", nil, func(ctx context.Context) (string, error) {
					return "by the next one", b.Exec(ctx, b.entry("k"))
				})
				if n := b.Entries(t, "k"); err != nil || got != want || n != 1 {
					t.Errorf("the answer is %q, %v, with %d entries; want %q and one", got, err, n, want)
				}
			}
		})
	}
}

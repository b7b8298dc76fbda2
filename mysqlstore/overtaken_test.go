package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
	"github.com/dibs-go/dibs/internal/sqltest"
)

// TestClaimMeetsItsSettlement: a settlement looks at keys one of which has no row, and
// has to wait for another one's; meanwhile the claim that it is for takes the first key.
// It is not said then that the lease was lost, if it was this settlement that ended it.
func TestClaimMeetsItsSettlement(t *testing.T) {
	t.Parallel()
	for kind, server := range servers {
		for _, outcome := range []dibs.Outcome{dibs.Undo, dibs.Keep} {
			t.Run(fmt.Sprint(kind, " ", outcome), func(t *testing.T) {
				t.Parallel()
				prefix := ownPrefix()
				s := open(t, server().URL(), &Options{Prefix: prefix})
				db := openDB(t, server().URL())
				claim := func(name string) dibs.Claim {
					return dibs.Claim{Key: dibs.Key{Name: name}, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}
				}
				late, held := claim("a"), claim("b")
				grant := func(c dibs.Claim) {
					t.Helper()
					answers := make([]dibs.Answer, 1)
					if err := s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].State != dibs.Granted {
						t.Fatal(err, answers)
					}
				}
				grant(held)
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
				var fence int64
				if err := tx.QueryRowContext(t.Context(), "SELECT fence FROM "+prefix+"_key WHERE k=? FOR UPDATE", []byte(engine.KeyOf(held.Key))).Scan(&fence); err != nil {
					t.Fatal(err)
				}
				settle := func(ctx context.Context) ([]error, error) {
					errs := make([]error, 2)
					return errs, s.Settle(ctx, []dibs.Settlement{
						{Key: late.Key, Token: late.Token, Outcome: outcome, Retention: time.Hour},
						{Key: held.Key, Token: held.Token, Outcome: outcome, Retention: time.Hour},
					}, errs)
				}
				var errs []error
				done := make(chan error, 1)
				go func() {
					var err error
					errs, err = settle(t.Context())
					done <- err
				}()
				sqltest.Eventually(t, "the settlement waits for the row", func() bool {
					var n int
					err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM information_schema.processlist WHERE id<>connection_id() AND info LIKE '%"+prefix+"\\_key%FOR UPDATE%'").Scan(&n)
					return err == nil && n > 0
				})
				grant(late)
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				err = <-done
				renewed := make([]error, 1)
				if err := s.Renew(t.Context(), []dibs.Renewal{{Key: late.Key, Token: late.Token, TTL: time.Minute}}, renewed); err != nil {
					t.Fatal(err)
				}
				if err == nil && errors.Is(errs[0], dibs.ErrLost) && renewed[0] != nil {
					t.Error("the settlement ended the lease, and said that it was lost")
				}
			})
		}
	}
}

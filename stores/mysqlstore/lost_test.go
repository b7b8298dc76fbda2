package mysqlstore

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestRenewalWithoutAnswer: a renewal whose answer is lost with its connection is made
// again.
func TestRenewalWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := mariadb()
	wire := servertest.NewWire(t, server.Addr())
	c := sqltest.Client(t, open(t, server.URLAt(wire.Addr()), &Options{Prefix: testkit.Own(), PruneEvery: -1}), nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	for i := range 3 {
		lost := wire.LoseReplyTo("")
		if err := lease.Save(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Errorf("round %d: %v", i, err)
		}
		<-lost
	}
	testkit.Must(t, lease.Abandon(t.Context()))
	again, err := c.Acquire(t.Context(), "k", nil)
	if err != nil || string(again.Progress()) != "2" {
		t.Fatalf("%q, %v", again.Progress(), err)
	}
	testkit.Check(t, again.Release())
}

// TestStandstill: a process that pauses in the middle of a transaction does not
// keep the key's row locked for long.
func TestStandstill(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		s := open(t, server.URL(), &Options{Prefix: testkit.Own(), PruneEvery: -1})
		k := store.Key{Name: "k"}
		sqltest.Cycle(t, s, k)
		err := use(t.Context(), s.front, func(c *sql.Conn) error {
			lock := s.script().raw(begins).done()
			loadBatch(lock, engine.NewBatch(engine.Tokens{engine.KeyOf(k): nil}, false, 0), remote.Locking, new(bool))
			testkit.Check(t, lock.run(t.Context(), c))
			// The others wait, and fail alone, until the server has had enough of it.
			testkit.Eventually(t, "the row is free", func() bool {
				answers := make([]store.Answer, 1)
				claim := store.Claim{Key: k, Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}
				testkit.Check(t, s.Claim(t.Context(), []store.Claim{claim}, answers))
				return answers[0].State == store.Granted
			})
			return s.script().raw("COMMIT").done().run(t.Context(), c)
		})
		if err == nil {
			t.Error("the transaction was not ended")
		}
	})
}

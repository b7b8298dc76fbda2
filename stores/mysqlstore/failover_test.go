package mysqlstore

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestMovedName: when the primary is made read-only, and its name leads to another server, the store
// goes there, although its connections to the old primary last.
func TestMovedName(t *testing.T) {
	t.Parallel()
	user := "CREATE USER 'app'@'127.0.0.1'; GRANT ALL ON app.* TO 'app'@'127.0.0.1'"
	old, next := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true}), servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
	var at atomic.Value // the address that the name has
	at.Store(old.Addr())
	name := "moves" + testkit.Own()
	mysql.RegisterDialContext(name, func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", at.Load().(string))
	})
	for _, s := range []*servertest.MariaDBServer{old, next} {
		s.Query(user)
		made, err := Open(t.Context(), s.URL(), &Options{Migrate: true, PruneEvery: -1})
		testkit.Must(t, err)
		testkit.Must(t, made.Close())
	}
	config, _, err := parse(strings.Replace(old.URL(), "//root@", "//app@", 1), nil)
	testkit.Must(t, err)
	config.Net = name
	s, err := New(t.Context(), config, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, s.Close()) })
	claim := func() error {
		c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
		return s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1))
	}
	testkit.Must(t, claim())
	old.Query("SET GLOBAL read_only = 1")
	at.Store(next.Addr())
	testkit.Eventually(t, "it goes to the new primary", func() bool {
		return claim() == nil && next.Query("SELECT COUNT(*) FROM dibs_key WHERE token <> ''")[0][0] == "1"
	})
}

package memstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// A call that was under way when the store was closed finds nothing of the keys that were held
// then.
func TestCallAfterClose(t *testing.T) {
	s, err := New(nil)
	testkit.Must(t, err)
	c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
	grant := func() (a store.Answer) {
		c.Token = store.NewToken()
		_ = s.on(c.Key, c.Token, func(sh *shard, now int64) error { return sh.claim(&c, &a, now) }) // Claim, after it has looked
		return a
	}
	if a := grant(); a.State != store.Granted {
		t.Fatalf("%+v", a)
	}
	s.Close()
	if a := grant(); a.State != store.Granted || a.Attempt != 1 {
		t.Errorf("after the close: %+v", a)
	}
}

package etcd_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore/etcd"
)

// BenchmarkLock takes a key and gives it back, each caller its own key: this store, and etcd's own
// mutex with one session for all. With -cpu 16 there are 16 callers.
func BenchmarkLock(b *testing.B) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{servertest.Etcd(b, nil).URL()}})
	testkit.Must(b, err)
	defer client.Close()
	s, err := etcd.Open(b.Context(), client, nil)
	testkit.Must(b, err)
	defer s.Close()
	session, err := concurrency.NewSession(client)
	testkit.Must(b, err)
	defer session.Close()
	var callers atomic.Int64
	b.Run("dibs", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			k := store.Key{Name: "k" + strconv.FormatInt(callers.Add(1), 10)}
			answers, errs := make([]store.Answer, 1), make([]error, 1)
			for pb.Next() {
				token := store.NewToken()
				err := s.Claim(b.Context(), []store.Claim{{Key: k, Token: token, TTL: 30 * time.Second, Permits: 1, Weight: 1}}, answers)
				if err != nil || answers[0].State != store.Granted {
					b.Errorf("%+v, %v", answers[0], err)
					return
				}
				testkit.Check(b, s.Settle(b.Context(), []store.Settlement{{Key: k, Token: token}}, errs))
				testkit.Check(b, errs[0])
			}
		})
	})
	b.Run("concurrency.Mutex", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			m := concurrency.NewMutex(session, "m"+strconv.FormatInt(callers.Add(1), 10))
			for pb.Next() {
				testkit.Check(b, m.Lock(b.Context()))
				testkit.Check(b, m.Unlock(b.Context()))
			}
		})
	})
}

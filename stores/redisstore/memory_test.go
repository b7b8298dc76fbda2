package redisstore

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestMemoryComesBack: after thirty thousand keys the server is as it was.
func TestMemoryComesBack(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, &servertest.RedisOptions{Directives: []string{"hz 100"}})
	s := open(t, server.URL(), nil)
	use := func(n, first int) {
		const batch, workers = 500, 4
		var working sync.WaitGroup
		for w := range workers {
			working.Go(func() {
				claims, answers := make([]store.Claim, batch), make([]store.Answer, batch)
				settlements, errs := make([]store.Settlement, batch), make([]error, batch)
				for from := w * batch; from < n; from += workers * batch {
					for i := range claims {
						claims[i] = lock(fmt.Sprintf("key %d", first+from+i), answered)
						x := store.Settlement{Key: claims[i].Key, Token: claims[i].Token}
						if i%2 == 0 {
							x.Outcome, x.Data, x.Retention = store.Keep, []byte("answer"), 10*time.Millisecond
						}
						settlements[i] = x
					}
					if err := s.Claim(t.Context(), claims, answers); err != nil {
						t.Error(err)
						return
					}
					if err := s.Settle(t.Context(), settlements, errs); err != nil {
						t.Error(err)
						return
					}
					for i := range claims {
						if answers[i].State != store.Granted || errs[i] != nil {
							t.Errorf("key %d was answered %+v and %v", first+from+i, answers[i], errs[i])
							return
						}
					}
				}
			})
		}
		working.Wait()
	}
	memory := func() int64 {
		server.Must("MEMORY", "PURGE")
		n, err := strconv.ParseInt(server.Info("used_memory"), 10, 64)
		testkit.Must(t, err)
		return n
	}
	empty := func() bool { return server.Must("DBSIZE") == int64(2) } // the fence and the listed names

	use(2000, 0) // scripts, connections and their buffers
	testkit.Eventually(t, "the first keys are gone", empty)
	before := memory()
	use(30_000, 2000)
	testkit.Eventually(t, "all keys are gone", empty)
	// Thirty thousand keys of one byte would be 1.5 MB.
	const most = 256 << 10
	testkit.Eventually(t, "the memory is back where it was", func() bool { return memory()-before < most })
	t.Logf("memory: %d bytes before, %d after", before, memory())
	leftover(t, server, "dibs")
}

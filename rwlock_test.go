package dibs_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/memstore"
)

// Readers share the key, a writer is alone, and each has its turn in the order of arrival.
func TestReadersAndWriters(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		start := time.Now()
		granted := make(chan string, 10)
		caller := func(name string, take func() (*dibs.Lease, error)) {
			go func() {
				lease, err := take()
				if err != nil {
					t.Error(err)
					return
				}
				granted <- name + " after " + time.Since(start).String()
				time.Sleep(time.Second)
				release(t, lease)
			}()
			synctest.Wait()
		}
		reads := func() (*dibs.Lease, error) { return c.RLock(t.Context(), "k", nil) }
		caller("reader", reads)
		caller("reader", reads)
		caller("writer", func() (*dibs.Lease, error) { return c.Lock(t.Context(), "k", nil) })
		caller("reader", reads)
		caller("reader", reads)
		caller("mutex", func() (*dibs.Lease, error) { return c.Acquire(t.Context(), "k", nil) })
		caller("reader", reads)
		time.Sleep(time.Minute)
		for _, want := range []string{
			"reader after 0s", "reader after 0s", "writer after 1s", "reader after 2s", "reader after 2s", "mutex after 3s", "reader after 4s",
		} {
			if got := <-granted; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		if _, err := c.RLock(t.Context(), "k", &dibs.AcquireOptions{Weight: 2}); err == nil {
			t.Error("a reader with a weight of its own was granted")
		}
		empty(t, s)
	})
}

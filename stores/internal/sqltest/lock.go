package sqltest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// If another transaction keeps the row of a key locked, the calls about that key fail after a
// while, and no other calls do. It does not matter whether the row exists or is being made.
func (k *Kind) lockedRow(t *testing.T) {
	s := k.Open(t, k.Server.URL(), testkit.Own(), none)
	token := Hold(t, s, "locked")
	conn := k.conn(t)
	statements(t, conn, "BEGIN", k.lock(s, "locked"), k.Names(s, fmt.Sprintf(k.NewKey, k.key("new"))))
	settlements := []store.Settlement{{Key: store.Key{Name: "locked"}, Token: token}, {Key: store.Key{Name: "other"}, Token: store.NewToken()}}
	errs := make([]error, 2)
	testkit.Must(t, s.Settle(t.Context(), settlements, errs))
	if !errors.Is(errs[0], k.Locked) || !errors.Is(errs[1], store.ErrLost) {
		t.Errorf("%v; want %v, and ErrLost for the other key", errs, k.Locked)
	}
	claims, answers := make([]store.Claim, 4), make([]store.Answer, 4)
	for i, name := range []string{"locked", "free", "new", "free too"} {
		claims[i] = store.Claim{Key: store.Key{Name: name}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Minute, PlaceTTL: time.Minute, Permits: 1, Weight: 1}
	}
	testkit.Must(t, s.Claim(t.Context(), claims, answers))
	for i, a := range answers {
		if locked := i%2 == 0; errors.Is(a.Err, k.Locked) != locked || (a.State == store.Granted) == locked {
			t.Errorf("claim %d: %+v; want %v for every other one, and grants", i, a, k.Locked)
		}
	}
	statements(t, conn, "ROLLBACK")
	if err := Settle(t, s, settlements[0]); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// Calls about the same keys, in any order and from many stores, all succeed. Where the server
// counts deadlocks, it counts none.
func (k *Kind) deadlocks(t *testing.T, callers int) {
	const keys = 24
	url, name := k.Server.URL(), testkit.Own()
	if k.Database != nil {
		url = k.Database()
	}
	stores := []Store{k.Open(t, url, name, 0), k.Open(t, url, name, 10*time.Millisecond)}
	var all sync.WaitGroup
	for g := range callers {
		s := stores[g%len(stores)]
		all.Go(func() {
			for range 6 {
				claims, settlements, renewals := make([]store.Claim, keys), make([]store.Settlement, keys), make([]store.Renewal, keys)
				for i, n := range rand.Perm(keys) {
					key, token := store.Key{Name: fmt.Sprint(n)}, store.NewToken()
					claims[i] = store.Claim{
						Key: key, Token: token, Mode: store.Mode(rand.IntN(3)), TTL: time.Second, PlaceTTL: time.Second,
						Permits: 1, Weight: 1, MaxAge: time.Duration(rand.IntN(2)) * time.Hour,
					}
					settlements[i] = store.Settlement{Key: key, Token: token, Outcome: store.Outcome(rand.IntN(4)), Retention: time.Millisecond}
					renewals[i] = store.Renewal{Key: key, Token: token, TTL: time.Second}
				}
				answers, errs := make([]store.Answer, keys), make([]error, keys)
				err := s.Claim(t.Context(), claims, answers)
				for _, a := range answers {
					if a.Err != nil && !errors.Is(a.Err, k.Locked) {
						err = errors.Join(err, a.Err)
					}
				}
				err = errors.Join(err, s.Renew(t.Context(), renewals, errs), s.Settle(t.Context(), settlements, errs))
				if _, wrong := s.Prune(t.Context(), 10); !errors.Is(wrong, k.Locked) {
					err = errors.Join(err, wrong)
				}
				testkit.Check(t, err)
			}
		})
	}
	all.Wait()
	if k.Database == nil {
		return
	}
	for _, s := range stores {
		testkit.Check(t, s.Close())
	}
	// The server counts a connection's deadlocks at the latest when it ends.
	db, n := k.DB(t, url), 0
	testkit.Eventually(t, "the server has counted", func() bool {
		err := db.QueryRowContext(t.Context(), k.Others).Scan(&n)
		return err == nil && n == 0
	})
	if err := db.QueryRowContext(t.Context(), k.Deadlocks).Scan(&n); err != nil || n > 0 {
		t.Errorf("%d deadlocks, %v", n, err)
	}
}

// A claim whose wait for a row ends as the row is unlocked is granted, or it did nothing. The
// server ends the wait and the lock at nearly the same moment.
func (k *Kind) lockWaitRaces(t *testing.T) {
	s := k.Open(t, k.Server.URL(), testkit.Own(), none)
	var all sync.WaitGroup
	for i := range 16 {
		key, token, conn := store.Key{Name: fmt.Sprint(i)}, store.NewToken(), k.conn(t)
		Cycle(t, s, key) // so that there is a row
		statements(t, conn, "BEGIN", k.lock(s, key.Name))
		all.Go(func() {
			ended := make(chan error, 1)
			go func() {
				lasts := k.LockWait.Seconds() - 0.1 + float64(i)/60
				_, err := conn.ExecContext(t.Context(), fmt.Sprintf(k.Sleep, lasts))
				if err == nil {
					_, err = conn.ExecContext(t.Context(), "ROLLBACK")
				}
				ended <- err
			}()
			a := Ask(t, s, store.Claim{Key: key, Token: token})
			testkit.Check(t, <-ended)
			stranger := Ask(t, s, store.Claim{Key: key, Token: store.NewToken(), Mode: store.Look})
			granted := a.State == store.Granted && stranger.State == store.Held
			if !granted && !(errors.Is(a.Err, k.Locked) && stranger.State == store.Free) {
				t.Errorf("%+v, and then %+v", a, stranger)
			}
		})
	}
	all.Wait()
}

// Crowd is clients of several stores that work without a break.
type Crowd struct {
	t     testing.TB
	s     Store
	done  atomic.Int64 // cycles
	stop  context.CancelFunc
	group sync.WaitGroup
}

// NewCrowd starts a crowd on stores that share their tables. No test disturbs the connections of
// the last store.
func NewCrowd(t testing.TB, stores ...Store) *Crowd {
	t.Helper()
	c := &Crowd{t: t, s: stores[len(stores)-1]}
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	var inside [4]atomic.Pointer[dibs.Lease]
	var answers sync.Map
	var number atomic.Int64
	var clients []*dibs.Client
	for _, s := range stores {
		// If a store cannot be reached, its waiters notice soon, and its leases expire soon.
		clients = append(clients, Client(t, s, &dibs.Options{TTL: 2 * time.Second, Timeout: 5 * time.Second}))
	}
	for g := range 16 {
		client := clients[g%len(clients)]
		c.group.Go(func() {
			for ctx.Err() == nil {
				n := rand.IntN(len(inside))
				err := client.Do(ctx, fmt.Sprint("lock ", n), func(ctx context.Context) error {
					lease, _ := dibs.FromContext(ctx)
					// Until is never later than what the server grants. The time is read after the swap,
					// because this caller may have paused before it, and its lease may have expired.
					other := inside[n].Swap(lease)
					if now := time.Now(); other != nil && now.Before(other.Until()) && now.Before(lease.Until()) {
						t.Error("two hold a key")
					}
					inside[n].CompareAndSwap(lease, nil)
					return nil
				})
				key := fmt.Sprint("once ", rand.IntN(200))
				mine := fmt.Sprint(number.Add(1))
				got, wrong := dibs.Once(ctx, client, key, nil, func(context.Context) (string, error) { return mine, nil })
				if wrong == nil {
					if first, there := answers.LoadOrStore(key, got); there && first != got {
						t.Errorf("%s was answered %v and %v", key, first, got)
					}
				}
				if err == nil && wrong == nil {
					c.done.Add(1)
				}
			}
		})
	}
	return c
}

// GoOn waits until the crowd has made that many more cycles.
func (c *Crowd) GoOn(more int64) {
	c.t.Helper()
	want := c.done.Load() + more
	testkit.Eventually(c.t, "work continues", func() bool { return c.done.Load() >= want })
}

// End ends the crowd. It has left only records then.
func (c *Crowd) End() {
	c.t.Helper()
	c.stop()
	c.group.Wait()
	testkit.Eventually(c.t, "nothing but records is left", func() bool {
		for e, err := range c.s.List(c.t.Context(), store.Query{}) {
			if err != nil || e.Condition != store.ConditionDone && e.Condition != store.ConditionAbandoned {
				return false
			}
		}
		return true
	})
}

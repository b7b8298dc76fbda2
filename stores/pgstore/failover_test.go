package pgstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestFailover: a URL with several hosts finds the primary that took the place of another one. What
// was held stays held, who waits continues, and what was kept is not done again.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(old, next *servertest.PostgresServer){
		"the old primary is gone, and comes back as a standby": func(old, next *servertest.PostgresServer) {
			old.Kill()
			next.Promote()
			old.Rejoin(next, next.Addr())
		},
		"the old primary does not answer": func(old, next *servertest.PostgresServer) {
			old.Pause()
			next.Promote()
			next.Query("ALTER SYSTEM SET synchronous_standby_names = ''")
			next.Query("SELECT pg_reload_conf()")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := servertest.PostgresOptions{NoSync: true, Standbys: true, Settings: []string{"synchronous_standby_names = '*'"}}
			old := servertest.Postgres(t, &options)
			options.StandbyOf = old
			next := servertest.Postgres(t, &options)
			next.AwaitStandby(old)
			url := strings.Replace(old.URL(), old.Addr(), old.Addr()+","+next.Addr(), 1) + "&connect_timeout=2"
			var clients [2]*dibs.Client // of two processes
			for i := range clients {
				var err error
				clients[i], err = dibs.New(open(t, url, nil), &dibs.Options{TTL: time.Hour})
				testkit.Must(t, err)
				t.Cleanup(func() { testkit.Check(t, clients[i].Close()) })
			}
			ran := 0
			once := func(c *dibs.Client) (string, error) {
				return dibs.Once(t.Context(), c, "order 7", nil, func(context.Context) (string, error) { ran++; return "kept", nil })
			}
			_, err := once(clients[0])
			testkit.Must(t, err)
			held, err := clients[0].Acquire(t.Context(), "k", nil)
			testkit.Must(t, err)
			granted := make(chan *dibs.Lease, 1)
			go func() {
				for {
					// A waiter gives up when the store is away for long; its caller tries again.
					if lease, err := clients[1].Acquire(t.Context(), "k", &dibs.AcquireOptions{Wait: testkit.Limit}); err == nil || t.Context().Err() != nil {
						granted <- lease
						return
					}
				}
			}()
			testkit.Eventually(t, "it waits", func() bool { return old.Query("SELECT count(*) FROM public.dibs_waiter")[0][0] == "1" })

			end(old, next)
			testkit.Eventually(t, "the new primary answers", func() bool {
				found, err := clients[0].Held(t.Context(), "k")
				return err == nil && found
			})
			var answer string
			testkit.Eventually(t, "the answer is there", func() bool { answer, err = once(clients[1]); return err == nil })
			if answer != "kept" || ran != 1 {
				t.Errorf("it ran %d times, and is answered %q", ran, answer)
			}
			select {
			case <-granted:
				t.Error("two hold the key")
			default:
			}
			_ = held.Release() // what fails is done in the background
			lease := testkit.Await(t, "the waiter continues", granted)
			if lease.Fence() <= held.Fence() {
				t.Errorf("the fence %d was granted after %d", lease.Fence(), held.Fence())
			}
			testkit.Check(t, lease.Release())
		})
	}
}

// TestReadOnlyPrimary: when the primary takes no writes any more, the store goes to another host.
func TestReadOnlyPrimary(t *testing.T) {
	t.Parallel()
	old := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	next := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	open(t, next.URL(), nil) // for its tables
	s := open(t, strings.Replace(old.URL(), old.Addr(), old.Addr()+","+next.Addr(), 1), nil)
	claim := func() error {
		c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
		return s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1))
	}
	testkit.Must(t, claim())
	old.Query("ALTER SYSTEM SET default_transaction_read_only = on")
	old.Query("SELECT pg_reload_conf()")
	testkit.Eventually(t, "it goes to the other host", func() bool {
		return claim() == nil && next.Query("SELECT count(*) FROM public.dibs_key WHERE token <> ''")[0][0] == "1"
	})
}

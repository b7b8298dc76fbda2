package dibs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestLeadReturnsWhatTheLeaderReturned(t *testing.T) {
	for name, want := range map[string]error{"nothing": nil, "an error": errors.New("the port is taken")} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
				err := c.Lead(t.Context(), "leader", nil, func(ctx context.Context) error {
					if lease, ok := dibs.FromContext(ctx); !ok || lease.Key().Name != "leader" {
						t.Error("the context does not carry the leader's lease")
					}
					return want
				})
				if !errors.Is(err, want) {
					t.Errorf("Lead returned %v, want %v", err, want)
				}
				empty(t, s)
			})
		})
	}
}

func TestLeadAgainAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		terms := make(chan string)
		lead := func(name string) (resign func()) {
			c := newClient(t, s, nil)
			stop := make(chan struct{})
			go func() {
				err := c.Lead(t.Context(), "leader", nil, func(ctx context.Context) error {
					terms <- name
					select {
					case <-ctx.Done():
						return nil // which does not end it, because leadership was lost
					case <-stop:
						return context.Canceled
					}
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Lead of %s returned %v", name, err)
				}
				terms <- name + " resigned"
			}()
			return func() { close(stop) }
		}
		expect := func(want string) {
			t.Helper()
			if got := <-terms; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		resignA := lead("a")
		expect("a")
		resignB := lead("b")
		synctest.Wait()
		if _, err := s.ForceRelease(t.Context(), dibs.Key{Name: "leader"}, ""); err != nil {
			t.Fatal(err)
		}
		expect("b")
		time.Sleep(dibs.DefaultTTL) // a has noticed by then, and waits behind b
		resignB()
		for range 2 {
			if got := <-terms; got != "b resigned" && got != "a" {
				t.Errorf("%q, want that b resigned and a leads", got)
			}
		}
		resignA()
		expect("a resigned")
		empty(t, s)
	})
}

func TestLeadEndsWithItsContext(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, leader *dibs.Client) {
		// Its Wait does not end the campaign.
		candidate := newClient(t, s, &dibs.Options{Wait: time.Second})
		why := errors.New("the service stops")
		ctx, stop := context.WithCancelCause(t.Context())
		ends := make(chan error, 2)
		lead := func(c *dibs.Client) {
			ends <- c.Lead(ctx, "leader", nil, func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
		}
		go lead(leader)
		synctest.Wait()
		go lead(candidate)
		time.Sleep(time.Hour)
		stop(why)
		var led, waited int
		for range 2 {
			switch err := <-ends; {
			case err == nil:
				led++
			case errors.Is(err, why):
				waited++
			}
		}
		if led != 1 || waited != 1 {
			t.Errorf("%d led and %d waited until the context ended; want one of each", led, waited)
		}
		empty(t, s)
	})
}

func TestLeadEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		leader, candidate := newClient(t, s, nil), newClient(t, s, nil)
		stopped := errors.New("stopped")
		led, waited := make(chan error, 1), make(chan error, 1)
		go func() {
			led <- leader.Lead(t.Context(), "leader", nil, func(ctx context.Context) error {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), dibs.ErrClosed) {
					t.Errorf("the leader's context ended with %v", context.Cause(ctx))
				}
				return stopped
			})
		}()
		synctest.Wait()
		go func() {
			waited <- candidate.Lead(t.Context(), "leader", nil, func(context.Context) error { return nil })
		}()
		synctest.Wait()
		for _, c := range []*dibs.Client{candidate, leader} {
			testkit.Check(t, c.Close())
		}
		if err := <-led; !errors.Is(err, stopped) {
			t.Errorf("Lead of the leader returned %v", err)
		}
		if err := <-waited; !errors.Is(err, dibs.ErrClosed) {
			t.Errorf("Lead of the candidate returned %v", err)
		}
		empty(t, s)
	})
}

func TestLeadOutlastsAnOutage(t *testing.T) {
	withFaults(t, func(t *testing.T, line *faulty, c *dibs.Client) {
		away := errors.New("connection refused")
		line.set(func(string) error { return away }, nil)
		go func() {
			time.Sleep(time.Minute)
			line.set(nil, nil)
		}()
		start := time.Now()
		testkit.Check(t, c.Lead(t.Context(), "leader", nil, func(context.Context) error { return nil }))
		if d := time.Since(start); d < time.Minute || d > time.Minute+2*time.Second {
			t.Errorf("led after %v; want a moment after the outage of a minute", d)
		}
		if claims, _, _ := line.counts(); claims > 600 {
			t.Errorf("%d claims in a minute; want pauses between them", claims)
		}
	})
}

func TestLeadRefuses(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		never := func(context.Context) error { t.Error("it leads"); return nil }
		for _, o := range []*dibs.AcquireOptions{{Wait: time.Second}, {Detach: true}, {TTL: -1}} {
			if err := c.Lead(t.Context(), "leader", o, never); err == nil {
				t.Errorf("%+v was taken", o)
			}
		}
		testkit.Must(t, c.Close())
		if err := c.Lead(t.Context(), "leader", nil, never); !errors.Is(err, dibs.ErrClosed) {
			t.Errorf("a closed client leads: %v", err)
		}
	})
}

// TestLeadReturnsTheLossOfAnotherKey: an fn that lost a key of its own has returned while it
// led, so Lead returns that and does not call it again.
func TestLeadReturnsTheLossOfAnotherKey(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		terms := 0
		err := c.Lead(t.Context(), "leader", nil, func(ctx context.Context) error {
			if terms++; terms > 1 {
				return nil
			}
			return c.Do(ctx, "another", func(ctx context.Context) error {
				_, err := s.ForceRelease(ctx, dibs.Key{Name: "another"}, "")
				return err
			})
		})
		if !errors.Is(err, dibs.ErrLost) || terms != 1 {
			t.Errorf("Lead returned %v after %d terms", err, terms)
		}
		empty(t, s)
	})
}

// TestLeadDoesNotReturnALostLeadersResult: what fn returns after it lost leadership counts
// for nothing, whatever it is.
func TestLeadDoesNotReturnALostLeadersResult(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		terms := 0
		if err := c.Lead(t.Context(), "leader", nil, func(ctx context.Context) error {
			if terms++; terms > 1 {
				return nil
			}
			if _, err := s.ForceRelease(ctx, dibs.Key{Name: "leader"}, ""); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}); err != nil || terms != 2 {
			t.Errorf("Lead returned %v after %d terms", err, terms)
		}
		empty(t, s)
	})
}

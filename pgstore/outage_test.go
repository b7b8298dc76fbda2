package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestCutOff: a process that is cut off from the server for 10 s, by a network that
// refuses or by one that is silent, keeps the others waiting until its leases have run
// out, and goes on when it is back. Meanwhile its own calls end in time.
func TestCutOff(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(*servertest.Wire){"cut": (*servertest.Wire).Cut, "hang": (*servertest.Wire).Hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wire := servertest.NewWire(t, shared().Addr())
			crowd := newCrowd(t, shared().URLAt(wire.Addr()), shared().URL())
			crowd.goOn(50)
			lone := newClient(t, open(t, shared().URLAt(wire.Addr()), namesOf(crowd.s)), nil)
			trouble(wire)
			back := time.Now().Add(10 * time.Second)
			for time.Now().Before(back) {
				start := time.Now()
				if _, err := lone.Acquire(t.Context(), "lone", nil); !errors.Is(err, dibs.ErrStore) {
					t.Errorf("%v, want ErrStore", err)
				}
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
				crowd.goOn(1) // those who are not cut off
			}
			wire.Mend()
			eventually(t, 20*time.Second, "it is back", func() bool {
				lease, err := lone.Acquire(t.Context(), "lone", nil)
				return err == nil && lease.Release() == nil
			})
			crowd.goOn(50)
			crowd.end()
		})
	}
}

// beSleeper is a child that holds a key, in a transaction with an entry, until it is
// told to go on.
func beSleeper(ctx context.Context, client *dibs.Client, tr dibs.Transactor, ledger string) {
	lease, err := client.Acquire(ctx, "k", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	tx, err := tr.Begin(context.WithoutCancel(lease.Context()))
	if err != nil {
		fmt.Println(err)
		return
	}
	own, _ := Tx(dibs.WithTransaction(ctx, tx))
	_, err = own.Exec(ctx, "INSERT INTO "+ledger+" VALUES ('k', 'overtaken')")
	fmt.Println("holds", err)
	_, _ = fmt.Scanln()
	fmt.Println(errors.Is(lease.Err(), dibs.ErrLost))
	// Whatever the client thinks of it, the server does not commit what comes too late.
	fmt.Println(tx.Commit(ctx, dibs.Settlement{Key: lease.Key(), Token: dibs.NewToken(), Outcome: dibs.Keep, Data: []byte("wrong"), Retention: time.Hour}))
	fmt.Println(errors.Is(lease.Release(), dibs.ErrLost))
}

// TestStopped: a process that stands still for longer than its lease finds out when it
// goes on that it is lost, and nothing of what it then does is committed.
func TestStopped(t *testing.T) {
	t.Parallel()
	schema := ownSchema()
	s := open(t, shared().URL(), &Options{Schema: schema})
	shared().Query("CREATE TABLE " + schema + ".ledger (key text NOT NULL, answer text NOT NULL)")
	sleeper := startChild(t, shared().URL(), schema, "sleeper")
	if got := sleeper.read(); got != "holds <nil>" {
		t.Fatal(got)
	}
	servertest.Freeze(t, sleeper.cmd.Process)
	start := time.Now()
	lease, err := newClient(t, s, nil).Acquire(t.Context(), "k", nil)
	if err != nil || lease.Attempt() != 2 {
		t.Fatalf("%+v, %v", lease, err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("its lease of %v kept others waiting for %v", childTTL, took)
	}
	if err := sleeper.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintln(sleeper.in, "go on")
	for _, want := range []string{"true", dibs.ErrLost.Error(), "true"} {
		if got := sleeper.read(); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	sleeper.kill()
	if n := shared().Query("SELECT count(*) FROM " + schema + ".ledger")[0][0]; n != "0" {
		t.Errorf("%s entries of a holder that was overtaken", n)
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}

// TestLockTimeoutRacesGrant: a claim whose wait for a row ends as the row becomes free
// is granted, or nothing was done for it.
func TestLockTimeoutRacesGrant(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	const n = 16
	var all sync.WaitGroup
	var granted, locked atomic.Int64
	for i := range n {
		all.Go(func() {
			k, token := dibs.Key{Name: fmt.Sprint(i)}, dibs.NewToken()
			claim := func(token dibs.Token, mode dibs.Mode) dibs.Answer {
				answers := make([]dibs.Answer, 1)
				if err := s.Claim(t.Context(), []dibs.Claim{{Key: k, Token: token, Mode: mode, TTL: time.Minute, Permits: 1}}, answers); err != nil {
					t.Error(err)
				}
				return answers[0]
			}
			cycle(t, s, k) // so that there is a row
			conn, err := pgx.Connect(t.Context(), shared().URL())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(t.Context(), fmt.Sprintf(s.names.sql(`BEGIN; SELECT FROM @key WHERE k = '\x00%x' FOR UPDATE`), k.Name)); err != nil {
				t.Error(err)
				return
			}
			lasts := 1.9 + float64(i)/40
			if i == n-1 {
				lasts = 6 // it is locked for longer than anybody waits
			}
			// The server itself ends the wait and, at nearly the same moment, the lock.
			ended := make(chan error, 1)
			go func() {
				_, err := conn.Exec(t.Context(), fmt.Sprintf("SELECT pg_sleep(%f); COMMIT", lasts))
				ended <- err
			}()
			a := claim(token, dibs.Try)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			switch stranger := claim(dibs.NewToken(), dibs.Look); {
			case a.State == dibs.Granted && stranger.State == dibs.Held:
				granted.Add(1)
			case errors.Is(a.Err, ErrLocked) && stranger.State == dibs.Free:
				locked.Add(1)
			default:
				t.Errorf("%+v, and then %+v", a, stranger)
			}
		})
	}
	all.Wait()
	if granted.Load() == 0 || locked.Load() == 0 {
		t.Errorf("%d were granted, %d were not", granted.Load(), locked.Load())
	}
}

// TestClockSetBack: when the server's clock is set back while many work, no two hold a
// key, fences rise, and no record is lost. (The clock is a function that comes before
// the server's own in the search_path: the store's functions do not know.)
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	server.Query(`CREATE SCHEMA wrong;
		CREATE TABLE wrong.clock (off interval);
		INSERT INTO wrong.clock VALUES ('0');
		CREATE FUNCTION wrong.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
			AS 'SELECT pg_catalog.clock_timestamp() + c.off FROM wrong.clock c'`)
	url := server.URL() + "&search_path=wrong,pg_catalog"
	crowd := newCrowd(t, url)
	crowd.goOn(50)
	client := newClient(t, crowd.s, &dibs.Options{TTL: 2 * time.Second})
	answer := func() string {
		t.Helper()
		got, err := dibs.Once(t.Context(), client, "kept", nil, func(context.Context) (string, error) { return time.Now().String(), nil })
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	kept, fence := answer(), uint64(0)
	held, err := client.Acquire(t.Context(), "held", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []string{"-10 minutes", "-1 hour", "-30 days"} {
		server.Query("UPDATE wrong.clock SET off = '" + off + "'")
		lease, err := client.Acquire(t.Context(), "again and again", nil)
		if err != nil {
			t.Fatal(err)
		}
		if lease.Fence() <= fence {
			t.Errorf("%s: the fence is %d after %d", off, lease.Fence(), fence)
		}
		fence = lease.Fence()
		if err := lease.Release(); err != nil {
			t.Errorf("%s: %v", off, err)
		}
		if got := answer(); got != kept {
			t.Errorf("%s: %q, want %q", off, got, kept)
		}
		if _, err := client.Acquire(t.Context(), "held", &dibs.AcquireOptions{NoWait: true}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("%s: %v, want ErrHeld", off, err)
		}
		renewed := held.Until()
		eventually(t, 10*time.Second, "the lease is renewed", func() bool { return held.Until().After(renewed) })
		crowd.goOn(50)
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
	lease, err := client.Acquire(t.Context(), "held", &dibs.AcquireOptions{NoWait: true})
	if err != nil || lease.Fence() <= held.Fence() || lease.Attempt() != 1 {
		t.Errorf("%v, %v", lease, err)
	} else if err := lease.Release(); err != nil {
		t.Error(err)
	}
	crowd.end()
}

package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/memstore"
)

// exampleClient returns a client of a store in memory; a fleet's clients share a
// store that outlives them, such as that of package sqlitestore.
func exampleClient() *dibs.Client {
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func ExampleClient_Do() {
	client := exampleClient()
	defer client.Close()
	balance := 100
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			err := client.Do(context.Background(), "account 7", func(ctx context.Context) error {
				read := balance
				time.Sleep(time.Millisecond) // think
				balance = read + 1
				return nil
			})
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	fmt.Println(balance)
	// Output: 105
}

func ExampleClient_Lead() {
	client := exampleClient()
	defer client.Close()
	ctx, stop := context.WithCancel(context.Background())
	err := client.Lead(ctx, "scheduler", nil, func(ctx context.Context) error {
		fmt.Println("leads")
		stop() // the service gets the signal to stop
		<-ctx.Done()
		return nil // the next candidate leads at once
	})
	fmt.Println(err)
	// Output:
	// leads
	// <nil>
}

func ExampleClient_TryDo() {
	client := exampleClient()
	defer client.Close()
	err := client.Do(context.Background(), "report", func(context.Context) error {
		// Another caller, meanwhile:
		return client.TryDo(context.Background(), "report", func(context.Context) error {
			fmt.Println("never printed")
			return nil
		})
	})
	fmt.Println(errors.Is(err, dibs.ErrHeld))
	// Output: true
}

// A key with several permits is a semaphore.
func ExampleAcquireOptions_permits() {
	client := exampleClient()
	defer client.Close()
	three := &dibs.AcquireOptions{Permits: 3}
	var leases []*dibs.Lease
	for range 3 {
		lease, err := client.Acquire(context.Background(), "encoder", three)
		if err != nil {
			log.Fatal(err)
		}
		leases = append(leases, lease)
	}
	_, err := client.TryAcquire(context.Background(), "encoder", &dibs.AcquireOptions{Permits: 3})
	fmt.Println("a fourth:", errors.Is(err, dibs.ErrHeld))

	if err := leases[0].Release(); err != nil {
		log.Fatal(err)
	}
	lease, err := client.Acquire(context.Background(), "encoder", three)
	fmt.Println("after a release:", err)

	for _, l := range append(leases[1:], lease) {
		if err := l.Release(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// a fourth: true
	// after a release: <nil>
}

// What fn returned is remembered, and all callers get it.
func ExampleOnce() {
	client := exampleClient()
	defer client.Close()
	type invoice struct{ Number int }
	issued := 0
	issue := func(context.Context) (invoice, error) {
		issued++
		return invoice{Number: 1000 + issued}, nil
	}
	for range 3 {
		inv, err := dibs.Once(context.Background(), client, "invoice of order-17", nil, issue)
		fmt.Println(inv.Number, err)
	}
	fmt.Println("issued:", issued)
	// Output:
	// 1001 <nil>
	// 1001 <nil>
	// 1001 <nil>
	// issued: 1
}

// A run that is taken over after a crash skips the steps that were done.
func ExampleStep() {
	client := exampleClient()
	defer client.Close()
	ship := func(ctx context.Context, crash bool) error {
		_, err := dibs.Step(ctx, "charge", func(context.Context) (string, error) {
			fmt.Println("charging")
			return "ch_1", nil
		})
		if err != nil || crash {
			return err
		}
		label, err := dibs.Step(ctx, "label", func(context.Context) (string, error) {
			fmt.Println("printing the label")
			return "1Z999", nil
		})
		fmt.Println("shipped with", label)
		return err
	}

	lease, err := client.Acquire(context.Background(), "order-17", nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := ship(lease.Context(), true); err != nil {
		log.Fatal(err)
	}
	// A crash: the lease runs out. Abandon says so at once.
	if err := lease.Abandon(context.Background()); err != nil {
		log.Fatal(err)
	}

	err = client.Do(context.Background(), "order-17", func(ctx context.Context) error {
		lease, _ := dibs.FromContext(ctx)
		fmt.Println("attempt", lease.Attempt())
		return ship(ctx, false)
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// charging
	// attempt 2
	// printing the label
	// shipped with 1Z999
}

// Transfers between overlapping accounts never wait for each other in a circle.
func ExampleClient_DoAll() {
	client := exampleClient()
	defer client.Close()
	accounts := map[string]int{"alice": 100, "bob": 100}
	transfer := func(from, to string, amount int) error {
		return client.DoAll(context.Background(), []string{from, to}, func(ctx context.Context) error {
			accounts[from] -= amount
			accounts[to] += amount
			return nil
		})
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { _ = transfer("alice", "bob", 3) })
		all.Go(func() { _ = transfer("bob", "alice", 2) })
	}
	all.Wait()
	fmt.Println(accounts["alice"], accounts["bob"])
	// Output: 90 110
}

// A place in the queue is taken when a job is enqueued, and redeemed when it
// runs, perhaps in another process: jobs run in the order in which they were
// enqueued, not in that in which workers pick them up.
func ExampleClient_Reserve() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	var queue []string // what travels with the jobs
	for range 2 {
		place, _, err := client.Reserve(ctx, "customer 7", time.Hour, nil)
		if err != nil {
			log.Fatal(err)
		}
		text, err := place.MarshalText()
		if err != nil {
			log.Fatal(err)
		}
		queue = append(queue, string(text))
	}

	work := func(job int) error {
		var place dibs.Place
		if err := place.UnmarshalText([]byte(queue[job])); err != nil {
			return err
		}
		lease, err := client.TryRedeem(ctx, place, nil)
		if err != nil {
			return err
		}
		fmt.Println("job", job)
		return lease.Release()
	}
	fmt.Println("the second has to wait:", errors.Is(work(1), dibs.ErrHeld))
	for job := range 2 {
		if err := work(job); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// the second has to wait: true
	// job 0
	// job 1
}

// ledger is a resource that is guarded by the fence: it takes a write only from
// the newest holder that it knows.
type ledger struct {
	fence uint64
	lines []string
}

func (l *ledger) write(fence uint64, line string) error {
	if fence < l.fence {
		return errors.New("refused: there is a newer holder")
	}
	l.fence = fence
	l.lines = append(l.lines, line)
	return nil
}

// A holder that was paused for longer than its lease does not know that another
// caller has had the key meanwhile. The resource does.
func ExampleLease_Fence() {
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	var l ledger

	old, err := client.Acquire(ctx, "ledger", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the old holder:", l.write(old.Fence(), "1"))

	// It is paused, and its lease ends; here because an operator ends it.
	if _, err := store.ForceRelease(ctx, old.Key(), ""); err != nil {
		log.Fatal(err)
	}
	next, err := client.Acquire(ctx, "ledger", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the new holder:", l.write(next.Fence(), "2"))

	// The old one wakes, and continues without looking.
	fmt.Println("the old holder:", l.write(old.Fence(), "3"))
	fmt.Println("and gets:", old.Release())
	fmt.Println(l.lines)
	if err := next.Release(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the old holder: <nil>
	// the new holder: <nil>
	// the old holder: refused: there is a newer holder
	// and gets: dibs: the lease is lost
	// [1 2]
}

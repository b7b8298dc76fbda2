package gocronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/jobs/gocronlock"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// Two hosts have the same job. One of them runs it.
func Example() {
	scope := servertest.NewScope()
	defer scope.Close()
	url := servertest.Redis(scope, nil).URL() // that of your server
	tick := make(chan string)
	for range 2 {
		defer startHost(url, tick)()
	}
	// In any order:
	fmt.Println(<-tick)
	fmt.Println(<-tick)
	// Unordered output:
	// the report is made
	// another host has run this tick, or runs it now
}

// startHost is what each host does.
func startHost(url string, tick chan<- string) (stop func()) {
	store, err := redisstore.Open(context.Background(), url, nil)
	check(err)
	client, err := dibs.New(store, nil)
	check(err)

	locker, err := gocronlock.NewLocker(client, 4*time.Minute)
	check(err)
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	check(err)
	report := func() { tick <- "the report is made" }
	_, err = scheduler.NewJob(
		gocron.DurationJob(5*time.Minute),
		gocron.NewTask(report),
		gocron.WithName("report"), // the key
		gocron.WithStartAt(gocron.WithStartImmediately()),
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, _ error) {
			tick <- "another host has run this tick, or runs it now"
		})),
	)
	check(err)
	scheduler.Start()

	return func() {
		check(scheduler.Shutdown())
		check(client.Close())
		store.Close()
	}
}

// One host runs all jobs.
func ExampleElector() {
	scope := servertest.NewScope()
	defer scope.Close()
	ctx := context.Background()
	store, err := redisstore.Open(ctx, servertest.Redis(scope, nil).URL(), nil)
	check(err)
	defer store.Close()
	client, err := dibs.New(store, nil)
	check(err)
	defer client.Close()

	elector, err := gocronlock.NewElector(ctx, client, "cron of the shop", time.Second)
	check(err)
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	check(err)
	ran := make(chan string)
	_, err = scheduler.NewJob(
		gocron.DurationJob(5*time.Minute),
		gocron.NewTask(func() { ran <- "the leader runs it" }),
		gocron.WithStartAt(gocron.WithStartImmediately()),
	)
	check(err)
	scheduler.Start()
	fmt.Println(<-ran)

	check(scheduler.Shutdown())
	elector.Close()
	// Output: the leader runs it
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

package redisstore

import (
	"context"
	"io"
	"os"
	"sync"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// children use the store with the URL in their argument. They end when their standard input does.
var children = testkit.Children{
	"waiters": childWaiters,
}

// waitedFor is the key that children wait for.
const waitedFor = "waited for"

// waitersOfProcess is how many waiters one process has.
const waitersOfProcess = 5

// childWaiters waits many times. It is meant to be killed.
func childWaiters(args []string) error {
	c, done, err := childClient(args[0])
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range waitersOfProcess {
		all.Go(func() {
			if lease, err := c.Acquire(ctx, waitedFor, nil); err == nil {
				_ = lease.Release()
			}
		})
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	return err
}

func childClient(url string) (c *dibs.Client, done func(), err error) {
	s, err := Open(context.Background(), url, &Options{patience: testkit.Limit})
	if err != nil {
		return nil, nil, err
	}
	c, err = dibs.New(s, &dibs.Options{Namespace: "test", Timeout: testkit.Limit})
	return c, func() { _, _ = c.Close(), s.Close() }, err
}

package main

import (
	"context"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/peers"
	"github.com/dibs-go/dibs/stores/casstore"
	"github.com/dibs-go/dibs/stores/casstore/etcd"
	"github.com/dibs-go/dibs/stores/casstore/s3"
)

const mutexName = "`concurrency.Mutex`"

// openEtcd starts an etcd of one member with its default settings, which waits for its disk.
func openEtcd(ctx context.Context, _ config, b *candidates) {
	client := get(peers.DialEtcd(peers.EtcdServer(b, nil).URL(), lockTTL))
	b.Cleanup(func() { _ = client.Close() })
	store := get(etcd.Open(ctx, client, nil))
	b.enter(store, store.Close)
	mutex, end, err := peers.EtcdMutex(client, lockTTL)
	must(err)
	b.Cleanup(func() { _ = end() })
	b.lockers[mutexName] = []locker{mutex}
}

// requests counts what a client sends.
type requests struct {
	http.RoundTripper
	n atomic.Int64
}

func (r *requests) RoundTrip(q *http.Request) (*http.Response, error) {
	r.n.Add(1)
	return r.RoundTripper.RoundTrip(q)
}

// s3Requests counts the requests of a lock in a bucket, on a key that was used before.
func s3Requests(ctx context.Context, c config) figure {
	sent := &requests{RoundTripper: http.DefaultTransport}
	return with(func(ctx context.Context, _ config, b *candidates) {
		must(os.Setenv("AWS_ACCESS_KEY_ID", servertest.S3Access))
		must(os.Setenv("AWS_SECRET_ACCESS_KEY", servertest.S3Secret))
		o := get(s3.Parse(servertest.S3(b).Store("")))
		o.Client = &http.Client{Transport: sent}
		o.Store = casstore.Options{PruneEvery: -1}
		store := get(s3.Open(ctx, o))
		b.enter(store, store.Close)
	}, func(ctx context.Context, c config, b *candidates) figure {
		f := figure{detail: "in the median; each process that uses the store sends one more with each tick of a second"}
		for range c.rounds + 1 {
			before := sent.n.Load()
			must(under(ctx, b.lockers[ours][0], "key", func() {}))
			f.value = append(f.value, float64(sent.n.Load()-before))
		}
		f.value = f.value[1:] // the first one makes the objects
		return f
	})(ctx, c)
}

package etcd_test

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/casstore/etcd"
)

// The map of this module: the core of the store, and the one client that it is about.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root + "/stores/casstore", "go.etcd.io/etcd/client/v3"},
		Tests: []string{
			house.Root + "/store", house.Root + "/store/storetest", house.Root + "/internal/prove/house",
			house.Root + "/internal/prove/servertest", house.Root + "/internal/prove/testkit",
		},
	}})
}

// dial returns a client of an etcd that ends with the test.
func dial(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{servertest.Etcd(t, nil).URL()}})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, client.Close()) })
	return client
}

// TestList: names come in their order and in pages, and those of other prefixes do not come.
func TestList(t *testing.T) {
	client := dial(t)
	kv, other := etcd.NewKV(client, "a/"), etcd.NewKV(client, "b/")
	for _, name := range []string{"k/1", "k/3", "k/2", "l/0", "clock"} {
		_, err := kv.Put(t.Context(), name, []byte("x"), "")
		testkit.Must(t, err)
		_, err = other.Put(t.Context(), name, []byte("x"), "")
		testkit.Must(t, err)
	}
	for _, c := range []struct {
		after string
		limit int
		want  string
	}{{"", 10, "k/1 k/2 k/3 "}, {"k/", 2, "k/1 k/2 "}, {"k/2", 2, "k/3 "}, {"k/3", 2, ""}} {
		names, err := kv.List(t.Context(), "k/", c.after, c.limit)
		testkit.Check(t, err)
		got := ""
		for _, n := range names {
			got += n + " "
		}
		if got != c.want {
			t.Errorf("%d names after %q are %q, want %q", c.limit, c.after, got, c.want)
		}
	}
}

// TestWatch: a change by another client is told, also the first one after the watch has begun, and
// the watch ends with its context.
func TestWatch(t *testing.T) {
	client := dial(t)
	other, err := clientv3.New(clientv3.Config{Endpoints: client.Endpoints()})
	testkit.Must(t, err)
	defer other.Close()
	here, there := etcd.NewKV(client, "a/"), etcd.NewKV(other, "a/")
	ctx, end := context.WithCancel(t.Context())
	told, ended := make(chan struct{}), make(chan error)
	go func() { ended <- here.Watch(ctx, "k/1", func() { told <- struct{}{} }) }()
	testkit.Await(t, "that the watch has begun", told)
	version, err := there.Put(t.Context(), "k/1", []byte("x"), "")
	testkit.Must(t, err)
	testkit.Await(t, "that the object was made", told)
	testkit.Must(t, there.Delete(t.Context(), "k/1", version))
	testkit.Await(t, "that the object was deleted", told)
	end()
	if err := testkit.Await(t, "the end of the watch", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v", err)
	}
}

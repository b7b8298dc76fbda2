// Package etcd is the store on etcd: a casstore.KV over etcd's official client.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://10.0.0.1:2379"}})
//	...
//	s, err := etcd.Open(ctx, client, nil)
//
// A key of dibs is a key of etcd, and a change is one transaction that compares the revision of
// its last change. etcd answers after a majority of its members has it. So a lease outlives the
// loss of a minority, and no clock of a member decides anything.
//
// Keys are not deleted by etcd's leases. Each change makes a revision, so etcd's compaction must be
// on (--auto-compaction-retention).
package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dibs-go/dibs/stores/casstore"
)

// Options are the settings of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Prefix begins the keys in etcd; default "dibs/".
	Prefix string
	// Store are the settings of the store. The default of its Tick is 100 ms here. etcd takes
	// requests of up to 1.5 MiB unless it is configured otherwise, so its MaxObject must be less.
	Store casstore.Options
}

// Open opens the store in etcd. The client stays the caller's, who closes it after the store.
func Open(ctx context.Context, client *clientv3.Client, o *Options) (*casstore.Store, error) {
	if client == nil {
		return nil, errors.New("etcd: Open was given no client")
	}
	var options Options
	if o != nil {
		options = *o
	}
	if options.Prefix == "" {
		options.Prefix = "dibs/"
	}
	if options.Store.Tick == 0 {
		options.Store.Tick = 100 * time.Millisecond
	}
	return casstore.Open(ctx, &KV{client, options.Prefix}, &options.Store)
}

// KV is a casstore.KV in etcd. The version of an object is the revision of its last change.
type KV struct {
	client *clientv3.Client
	prefix string
}

// NewKV returns the objects of an etcd whose keys begin with prefix.
func NewKV(client *clientv3.Client, prefix string) *KV { return &KV{client, prefix} }

// Get implements casstore.KV. The read is linearizable, which is etcd's default.
func (k *KV) Get(ctx context.Context, name string) ([]byte, string, error) {
	a, err := k.client.Get(ctx, k.prefix+name)
	if err != nil || len(a.Kvs) == 0 {
		return nil, "", err
	}
	return a.Kvs[0].Value, strconv.FormatInt(a.Kvs[0].ModRevision, 10), nil
}

// Put implements casstore.KV.
func (k *KV) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	return k.change(ctx, name, version, clientv3.OpPut(k.prefix+name, string(value)))
}

// Delete implements casstore.KV.
func (k *KV) Delete(ctx context.Context, name, version string) error {
	_, err := k.change(ctx, name, version, clientv3.OpDelete(k.prefix+name))
	return err
}

// change changes an object if it still has that version, and returns the revision.
func (k *KV) change(ctx context.Context, name, version string, op clientv3.Op) (string, error) {
	was := int64(0) // of a key that is not there
	if version != "" {
		var err error
		if was, err = strconv.ParseInt(version, 10, 64); err != nil {
			return "", fmt.Errorf("etcd: %q is not a version of an object: %w", version, err)
		}
	}
	// The client does not send a transaction again that etcd may have got.
	a, err := k.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(k.prefix+name), "=", was)).Then(op).Commit()
	switch {
	case err != nil:
		return "", err
	case !a.Succeeded:
		return "", casstore.ErrConflict
	}
	return strconv.FormatInt(a.Header.Revision, 10), nil
}

// List implements casstore.KV.
func (k *KV) List(ctx context.Context, prefix, after string, limit int) (names []string, err error) {
	from := max(prefix, after+"\x00")
	a, err := k.client.Get(ctx, k.prefix+from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(k.prefix+prefix)),
		clientv3.WithKeysOnly(), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, err
	}
	for _, kv := range a.Kvs {
		names = append(names, strings.TrimPrefix(string(kv.Key), k.prefix))
	}
	return names, nil
}

// Watch implements casstore.Watcher.
func (k *KV) Watch(ctx context.Context, name string, changed func()) error {
	for a := range k.client.Watch(clientv3.WithRequireLeader(ctx), k.prefix+name, clientv3.WithCreatedNotify()) {
		if err := a.Err(); err != nil {
			return err
		}
		changed()
	}
	return ctx.Err()
}

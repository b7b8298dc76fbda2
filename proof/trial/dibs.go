package main

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/stores/anystore"
)

type dibsLocker struct{ client *dibs.Client }

func openDibs(ctx context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	s, err := anystore.Open(ctx, url, anystore.ToUse)
	if err != nil {
		return nil, nil, err
	}
	c, err := dibs.New(s.Store, &dibs.Options{Namespace: "trial", TTL: ttl})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return &dibsLocker{c}, func() error { return errors.Join(c.Close(), s.Close()) }, nil
}

func (l *dibsLocker) Lock(ctx context.Context, key string) (*torture.Held, error) {
	lease, err := l.client.Acquire(ctx, key, &dibs.AcquireOptions{Wait: time.Hour, Detach: true})
	if err != nil {
		return nil, err
	}
	return &torture.Held{Lost: lease.Context(), Fence: lease.Fence(), Unlock: lease.Release}, nil
}

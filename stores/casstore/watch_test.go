package casstore_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore"
)

// teller is a KV that tells of changes.
type teller struct {
	casstore.Memory
	mu       sync.Mutex
	begun    int                  // watches
	watchers map[string][]*func() // by name
}

func (k *teller) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	version, err := k.Memory.Put(ctx, name, value, version)
	if err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, changed := range k.watchers[name] {
			(*changed)()
		}
	}
	return version, err
}

func (k *teller) Watch(ctx context.Context, name string, changed func()) error {
	k.mu.Lock()
	k.begun++
	if k.watchers == nil {
		k.watchers = map[string][]*func(){}
	}
	k.watchers[name] = append(k.watchers[name], &changed)
	k.mu.Unlock()
	changed()
	<-ctx.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watchers[name] = slices.DeleteFunc(k.watchers[name], func(f *func()) bool { return f == &changed })
	return ctx.Err()
}

// watched returns how many watches there are now, and how many have begun.
func (k *teller) watched() (now, begun int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, of := range k.watchers {
		now += len(of)
	}
	return now, k.begun
}

// deaf is a KV whose watches do not tell, or end at once.
type deaf struct {
	teller
	ends bool
}

func (k *deaf) Watch(ctx context.Context, name string, _ func()) error {
	if k.ends {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.begun++
		return errors.New("the watch is lost")
	}
	return k.teller.Watch(ctx, name, func() {})
}

// TestWatch: a waiter is told of its turn when the key is given back. If the engine does not tell, it
// is told by the next poll. A key is watched while the process waits for it, and a lost watch begins
// again after a minute.
func TestWatch(t *testing.T) {
	const (
		tick  = 250 * time.Millisecond
		waits = 10*time.Minute + tick/3
	)
	for name, c := range map[string]struct {
		kv    casstore.KV
		late  time.Duration // at most
		begun int
	}{
		"told": {kv: &teller{}, begun: 10},
		"deaf": {kv: &deaf{}, late: tick, begun: 10},
		"lost": {kv: &deaf{ends: true}, late: tick, begun: 10},
		"none": {kv: &casstore.Memory{}, late: tick},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &casstore.Options{Tick: tick, PruneEvery: -1}
				holds, waitsFor := open(t, c.kv, o), open(t, c.kv, o)
				woken := make(chan time.Time, 1)
				defer waitsFor.Notify(func(store.Token, store.Answer) { woken <- time.Now() })()
				holder := store.NewToken()
				claim(t, holds, holder, store.Try, time.Hour)
				claim(t, waitsFor, store.NewToken(), store.Queue, time.Hour)
				time.Sleep(waits)
				testkit.Check(t, settle(t, holds, store.Settlement{Token: holder}))
				end := time.Now()
				late := (<-woken).Sub(end)
				if late > c.late || (late == 0) != (c.late == 0) {
					t.Errorf("the waiter is woken %v after the key was given back, want at most %v", late, c.late)
				}
				time.Sleep(2 * time.Minute)
				var now, begun int
				if w, ok := c.kv.(interface{ watched() (now, begun int) }); ok {
					now, begun = w.watched()
				}
				if now != 0 || begun != c.begun {
					t.Errorf("%d watches began in ten minutes, and %d are left; want %d and none", begun, now, c.begun)
				}
			})
		})
	}
}

// TestWatchesAreBounded: a process that waits for many keys watches some of them, and polls for all.
func TestWatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 256
		k := &teller{}
		s := open(t, k, nil)
		claims := make([]store.Claim, most+44)
		for i := range claims {
			claims[i] = store.Claim{Key: store.Key{Name: strconv.Itoa(i)}, Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
		}
		for range 2 { // a holder and a waiter of each key
			for i := range claims {
				claims[i].Token = store.NewToken()
			}
			testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, len(claims))))
		}
		time.Sleep(time.Second)
		if now, _ := k.watched(); now != most {
			t.Errorf("%d keys are watched, want %d", now, most)
		}
	})
}

package casstore_test

import (
	"cmp"
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

// teller is a KV that tells of changes. It tells nothing if it is deaf, and ends each watch if it is lost.
type teller struct {
	casstore.Memory
	deaf, lost bool

	mu       sync.Mutex
	reads    int
	begun    int                  // watches
	watchers map[string][]*func() // by name
}

func (k *teller) Get(ctx context.Context, name string) ([]byte, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	return k.Memory.Get(ctx, name)
}

func (k *teller) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	version, err := k.Memory.Put(ctx, name, value, version)
	if err == nil && !k.deaf {
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
	defer k.mu.Unlock()
	k.begun++
	if k.lost {
		return errors.New("the watch is lost")
	}
	if k.watchers == nil {
		k.watchers = map[string][]*func(){}
	}
	k.watchers[name] = append(k.watchers[name], &changed)
	changed()
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	k.watchers[name] = slices.DeleteFunc(k.watchers[name], func(f *func()) bool { return f == &changed })
	return ctx.Err()
}

// counts returns how many reads there were, how many watches have begun, and how many there are.
func (k *teller) counts() (reads, begun, watches int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, of := range k.watchers {
		watches += len(of)
	}
	return k.reads, k.begun, watches
}

// TestWatch: a waiter is told of its turn when the key is given back, and a watch costs no more than
// its beginning. If the engine does not tell, the next poll does. A key is watched while the process
// waits for it, and a lost watch begins again after a minute.
func TestWatch(t *testing.T) {
	const (
		tick  = 250 * time.Millisecond
		waits = 10*time.Minute + tick/3
	)
	polls := 0 // how many reads a waiter costs that only polls
	for _, c := range []struct {
		what  string
		of    *teller
		kv    func(*teller) casstore.KV
		late  time.Duration // at most
		begun int
	}{
		{"none", &teller{}, func(k *teller) casstore.KV { return struct{ casstore.KV }{k} }, tick, 0},
		{"told", &teller{}, func(k *teller) casstore.KV { return k }, 0, 10},
		{"deaf", &teller{deaf: true}, func(k *teller) casstore.KV { return k }, tick, 10},
		{"lost", &teller{lost: true}, func(k *teller) casstore.KV { return k }, tick, 10},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &casstore.Options{Tick: tick, PruneEvery: -1}
				holds, waitsFor := open(t, c.kv(c.of), o), open(t, c.kv(c.of), o)
				woken := make(chan time.Time, 1)
				defer waitsFor.Notify(func(store.Token, store.Answer) { woken <- time.Now() })()
				holder := store.NewToken()
				claim(t, holds, holder, store.Try, time.Hour)
				claim(t, waitsFor, store.NewToken(), store.Queue, time.Hour)
				before, _, _ := c.of.counts()
				time.Sleep(waits)
				reads, _, _ := c.of.counts()
				reads -= before
				if polls = cmp.Or(polls, reads); reads > polls+2*c.begun {
					t.Errorf("a waiter reads %d objects in ten minutes, and %d without watches", reads, polls)
				}
				testkit.Check(t, settle(t, holds, store.Settlement{Token: holder}))
				end := time.Now()
				late := (<-woken).Sub(end)
				if late > c.late || (late == 0) != (c.late == 0) {
					t.Errorf("the waiter is woken %v after the key was given back, want at most %v", late, c.late)
				}
				time.Sleep(2 * time.Minute)
				if _, begun, now := c.of.counts(); now != 0 || begun != c.begun {
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
		if _, _, now := k.counts(); now != most {
			t.Errorf("%d keys are watched, want %d", now, most)
		}
	})
}

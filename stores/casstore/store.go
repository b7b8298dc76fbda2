package casstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storekit"
)

// core implements Claim, Renew, Settle, Notify, List, ForceRelease, Forget, Resolve and Prune.
type core = remote.Store

// Store is a store.Store, store.Inspector, store.Notifier, store.Pruner and store.Checker on a KV. Open makes it.
// It is safe for concurrent use.
type Store struct {
	*core
	server  *remote.Server
	kv      KV
	options Options
	ticker  ticker
	watches watches
	keeps   bool // no object is deleted, because the engine ignores the condition of that
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Notifier  = (*Store)(nil)
	_ store.Batcher   = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Pruner    = (*Store)(nil)
	_ store.Checker   = (*Store)(nil)
)

// ErrClosed is the error of calls of a store that was closed. It is store.ErrClosed.
var ErrClosed = fmt.Errorf("casstore: %w", store.ErrClosed)

// errBusy is the error of a call that other calls on its key were always faster than.
var errBusy = fmt.Errorf("casstore: %w", store.ErrBusy)

const (
	// keys begins the names of the objects of keys.
	keys = "k/"
	// reads is how many objects one call reads at once.
	reads = 32
	// maxTries is how often a step begins again because another one was faster.
	maxTries = 200
	// longestStep is the time after which a step reads its key again before it writes.
	longestStep = time.Minute
	// keepFree is how long a free key keeps its object, in microseconds: longer than a step and its
	// write can take. That an object is absent is not a version. So a write that found it absent must
	// not find it absent again after another process had a lease in between: its fence would be
	// below the other's. For the same reason a step may read the time before the object.
	keepFree = int64(time.Hour / time.Microsecond)
)

// Open opens the store in a KV. Options may be nil. First it proves on an object of its own that
// the KV heeds the conditions of writes: otherwise the error is ErrUnconditional. If only the
// condition of Delete is not heeded, the store deletes nothing, and Check says so.
func Open(ctx context.Context, kv KV, o *Options) (*Store, error) {
	if kv == nil {
		return nil, errors.New("casstore: Open was given no KV")
	}
	options, err := o.withDefaults(kv)
	if err != nil {
		return nil, err
	}
	s := &Store{kv: kv, options: options, watches: watches{keys: map[string]bool{}}}
	if !options.ReadOnly {
		if s.keeps, err = prove(ctx, kv); err != nil {
			return nil, err
		}
	}
	s.server = &remote.Server{
		// A step is one key's, so elements are made one by one.
		Closer: remote.NewCloser(ErrClosed), MaxElements: 1, MaxBytes: math.MaxInt, MaxWaiters: options.MaxWaiters,
		MaxRecord: options.MaxObject, PushedTTL: store.PushedTTL, PruneEvery: options.PruneEvery,
		PollMin: options.Tick / 2, PollMax: options.Tick, Busy: errBusy,
		Try: func(_ context.Context, call func() error) error { return call() },
		Claim: func(ctx context.Context, part []int, keys []string, claims []store.Claim, answers []store.Answer, _ int64) ([]int, error) {
			return rest(ctx, part, keys, claims, answers)
		},
		Renew: rest[store.Renewal, error], Settle: rest[store.Settlement, error],
		Work: s.work, List: s.list, Sweep: s.sweep, TakeSweep: s.takeSweep,
		KeepSweep: func(context.Context) error { return nil },
		Process:   func() int64 { return 0 }, // a grant is not pushed, because it could expire before a poll finds it
	}
	s.core = remote.New(s.server)
	remote.Start(s.core)
	return s, nil
}

// rest leaves all elements to work, because none is plain.
func rest[E, A any](_ context.Context, part []int, _ []string, _ []E, _ []A) ([]int, error) {
	return part, nil
}

// Close ends what the store does in the background. It returns nil. Calls after it return
// ErrClosed.
func (s *Store) Close() error {
	s.server.Close()
	return nil
}

// Batching implements store.Batcher: each key is an object, so a batch saves nothing, and its elements
// would wait for each other.
func (s *Store) Batching() store.Batching { return store.Batching{Direct: true, Size: 1} }

// work is a step: it reads the objects of the batch's keys, decides, and writes what changed.
// Only a sweep changes several keys in one step. It passes those over that another step changed.
func (s *Store) work(ctx context.Context, how remote.Load, b *engine.Batch, do func()) error {
	if how == remote.Polling {
		s.watches.need(s, b.Wants)
	}
	wrote := "" // the nonce of the last write
	for try := 1; ; try++ {
		began := time.Now()
		objects, least, most, err := s.load(ctx, b.Wants)
		if err != nil {
			return err
		}
		for _, o := range objects {
			if wrote != "" && o.Nonce == wrote {
				return nil // the write had arrived, although its answer was a conflict
			}
		}
		b.Limit = math.MaxInt64
		b.Begin()
		b.Now(least, most, 1)
		for k, o := range objects {
			o.load(b, k)
		}
		do()
		for _, step := range b.Changes().Steps {
			objects[step.K].step(&step)
		}
		conflict := false
		for k, o := range objects {
			o.take(b, k, s.options.Tick)
			s.ticker.need(s, o.ends(), least)
			if how >= remote.Looking {
				continue
			}
			if time.Since(began) > longestStep {
				conflict = true
				continue
			}
			wrote = rand.Text()
			err := s.write(ctx, how, k, o, least, most, wrote)
			switch {
			case errors.Is(err, ErrConflict):
				conflict = true
			case err != nil:
				return err
			}
		}
		if !conflict || how == remote.Passing {
			return nil
		}
		if try == maxTries {
			return errBusy
		}
		if try > 2 {
			again := backoff.Exponential{Min: time.Millisecond, Max: s.options.Tick / 2}
			if err := again.Wait(ctx, try-2); err != nil {
				return err
			}
		}
	}
}

// load reads the time and the objects of keys.
func (s *Store) load(ctx context.Context, keys engine.Tokens) (objects map[string]*body, least, most int64, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var late error
	all.Go(func() { least, most, late = s.options.Clock.Now(ctx) })
	objects = make(map[string]*body, len(keys))
	slots := make(chan struct{}, reads)
	for k := range keys {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			o, failed := s.read(ctx, k)
			mu.Lock()
			defer mu.Unlock()
			objects[k], err = o, cmp.Or(err, failed)
		})
	}
	all.Wait()
	return objects, least, most, cmp.Or(err, late)
}

// read reads the object of a key. That of a key without one is as encoded from nothing.
func (s *Store) read(ctx context.Context, k string) (*body, error) {
	raw, version, err := s.kv.Get(ctx, nameOf(k))
	if err != nil {
		return nil, err
	}
	if version == "" {
		raw = []byte("{}")
	}
	o := &body{raw: raw, version: version}
	if err := json.Unmarshal(raw, o); err != nil {
		return nil, fmt.Errorf("casstore: an object is not the body of a key: %w", err)
	}
	return o, nil
}

// write writes what changed of a key, or deletes its object if the key has been free for long.
func (s *Store) write(ctx context.Context, how remote.Load, k string, o *body, least, most int64, nonce string) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	changed := !bytes.Equal(raw, o.raw)
	switch {
	case !o.free():
		o.FreeSince = 0
	case o.FreeSince == 0:
		o.FreeSince = most
	case how == remote.Passing && !changed && o.FreeSince+keepFree <= least && !s.keeps:
		return s.kv.Delete(ctx, nameOf(k), o.version)
	}
	// What is settled in vain may be a claim that is still on its way. It must not find the object as
	// it was.
	if !changed && how != remote.Locking {
		return nil
	}
	o.Nonce = nonce
	if raw, err = json.Marshal(o); err != nil {
		return err
	}
	if len(raw) > s.options.MaxObject {
		return fmt.Errorf("%w: the object of the key would have %d bytes; at most %d are allowed", store.ErrTooLarge, len(raw), s.options.MaxObject)
	}
	_, err = s.kv.Put(ctx, nameOf(k), raw, o.version)
	return err
}

// alphabet is in the order of its bytes, so names are in the order of their keys.
var alphabet = base64.NewEncoding("-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz").WithPadding(base64.NoPadding)

// segment is how many bytes of a name are between two '/'. Some engines keep objects as files.
const segment = 200

// nameOf returns the name of a key's object. A '_' ends a segment that is not the last one, because
// an engine of files has no file that is a folder, too.
func nameOf(k string) string {
	name, rest := keys, alphabet.EncodeToString([]byte(k))
	for ; len(rest) > segment; rest = rest[segment:] {
		name += rest[:segment] + "_/"
	}
	return name + rest
}

// keyOf returns the key of an object, "" if it has none.
func keyOf(name string) string {
	raw, err := alphabet.DecodeString(strings.ReplaceAll(strings.TrimPrefix(name, keys), "_/", ""))
	if err != nil {
		return ""
	}
	return string(raw)
}

// list returns the keys from first to last.
func (s *Store) list(ctx context.Context, _ storekit.Part, first, last string, limit int) (all []string, err error) {
	after, end := keys, nameOf(last)
	if first != "" { // a name that is before that of first, and after all others before it
		name := nameOf(first)
		after = name[:len(name)-1] + string(name[len(name)-1]-1) + "~"
	}
	names, err := s.kv.List(ctx, keys, after, limit)
	for _, name := range names {
		if k := keyOf(name); k != "" && k >= first && name <= end {
			all = append(all, k)
		}
	}
	return all, err
}

package casstore

import (
	"context"
	"crypto/rand"
	"encoding/base64"
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
	// keepFree is how long a free key keeps its object, in microseconds: longer than a write can
	// be under way. That an object is absent is not a version. So a write that found it absent must
	// not find it absent again after another process had a lease in between: its fence would be
	// below the other's.
	keepFree = int64(time.Hour / time.Microsecond)
)

// again is the pause before a step begins again.
var again = backoff.Exponential{Min: time.Millisecond, Max: 64 * time.Millisecond}

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
	s := &Store{kv: kv, options: options}
	if !options.ReadOnly {
		if s.keeps, err = prove(ctx, kv); err != nil {
			return nil, err
		}
	}
	all := func(part []int) ([]int, error) { return part, nil } // nothing is plain
	s.server = &remote.Server{
		// A step is one key's, so elements are made one by one.
		Closer: remote.NewCloser(ErrClosed), MaxElements: 1, MaxBytes: math.MaxInt, MaxWaiters: options.MaxWaiters,
		MaxRecord: options.MaxObject, PushedTTL: store.PushedTTL, PruneEvery: options.PruneEvery,
		PollMin: options.Tick / 2, PollMax: options.Tick, Busy: errBusy,
		Try: func(_ context.Context, call func() error) error { return call() },
		Claim: func(_ context.Context, part []int, _ []string, _ []store.Claim, _ []store.Answer, _ int64) ([]int, error) {
			return all(part)
		},
		Renew: func(_ context.Context, part []int, _ []string, _ []store.Renewal, _ []error) ([]int, error) {
			return all(part)
		},
		Settle: func(_ context.Context, part []int, _ []string, _ []store.Settlement, _ []error) ([]int, error) {
			return all(part)
		},
		Work: s.work, List: s.list, Sweep: s.sweep, TakeSweep: s.takeSweep,
		KeepSweep: func(context.Context) error { return nil },
		Process:   func() int64 { return 0 }, // a grant is not pushed, because it could expire before a poll finds it
	}
	s.core = remote.New(s.server)
	remote.Start(s.core)
	return s, nil
}

// Close ends what the store does in the background. It returns nil. Calls after it return
// ErrClosed.
func (s *Store) Close() error {
	s.server.Close()
	return nil
}

// Batching implements store.Batcher: each key is an object, so a batch saves nothing.
func (s *Store) Batching() store.Batching { return store.Batching{Direct: true} }

// loaded is an object as it was read.
type loaded struct {
	body    *body
	version string
}

// work is a step: it reads the objects of the batch's keys, decides, and writes what changed.
// Only a sweep changes several keys in one step. It passes those over that another step changed.
func (s *Store) work(ctx context.Context, how remote.Load, b *engine.Batch, do func()) error {
	wrote := "" // the nonce of the last write
	for try := 1; ; try++ {
		began := time.Now()
		var least, most int64
		var late error
		var clock sync.WaitGroup
		clock.Go(func() { least, most, late = s.options.Clock.Now(ctx) })
		objects, absent, err := s.load(ctx, b, wrote)
		clock.Wait()
		if err == nil {
			err = late
		}
		if err == nil && absent {
			// The time gives the fence. It must be read after an object that was deleted meanwhile.
			least, most, err = s.options.Clock.Now(ctx)
		}
		if err != nil {
			return err
		}
		if objects == nil {
			return nil // the write had arrived, although its answer was a conflict
		}
		b.Limit = math.MaxInt64
		b.Begin()
		for k, o := range objects {
			b.AddRow(k, o.body.row)
		}
		b.Now(least, most, 1)
		for k, o := range objects {
			o.body.load(b, k)
		}
		do()
		changes := b.Changes()
		conflict := false
		for k, o := range objects {
			changed := o.body.apply(changes, k)
			s.ticker.need(s, o.body.ends(), least)
			if how >= remote.Looking {
				continue
			}
			if time.Since(began) > longestStep {
				conflict = true
				continue
			}
			wrote = rand.Text()
			err := s.write(ctx, how, k, o, changed, least, most, wrote)
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
			if err := again.Wait(ctx, try-2); err != nil {
				return err
			}
		}
	}
}

// load reads the objects of the batch's keys, and reports whether one is absent. It returns nil if
// the object of the only key is as the last write left it.
func (s *Store) load(ctx context.Context, b *engine.Batch, wrote string) (objects map[string]*loaded, absent bool, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	objects = make(map[string]*loaded, len(b.Wants))
	slots := make(chan struct{}, reads)
	for k := range b.Wants {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			raw, version, err := s.kv.Get(ctx, nameOf(k))
			var of *body
			if err == nil {
				of, err = decode(raw)
			}
			mu.Lock()
			defer mu.Unlock()
			objects[k], absent = &loaded{body: of, version: version}, absent || version == ""
			if err != nil {
				failed = err
			}
		})
	}
	all.Wait()
	if failed != nil {
		return nil, false, failed
	}
	if len(objects) == 1 && wrote != "" {
		for _, o := range objects {
			if o.body.Nonce == wrote {
				return nil, false, nil
			}
		}
	}
	return objects, absent, nil
}

// write writes what changed of a key, or deletes its object if the key has been free for long.
func (s *Store) write(ctx context.Context, how remote.Load, k string, o *loaded, changed bool, least, most int64, nonce string) error {
	since := o.body.FreeSince
	switch {
	case !o.body.free():
		o.body.FreeSince = 0
	case since == 0:
		o.body.FreeSince = most
	case how == remote.Passing && !changed && since+keepFree <= least && !s.keeps:
		return s.kv.Delete(ctx, nameOf(k), o.version)
	}
	// What is settled in vain may be a claim that is still on its way. It must not find the object as
	// it was.
	if !changed && how != remote.Locking && (o.body.FreeSince == since || o.version == "") {
		return nil
	}
	raw, err := o.body.encode(nonce)
	if err != nil {
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

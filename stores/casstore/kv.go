package casstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
)

// ErrConflict is the error of a write whose object is no longer as its version says. Nothing was
// written.
var ErrConflict = errors.New("casstore: the object has changed")

// KV is what an engine can do with objects. Names are up to 800 bytes of letters, digits, '-', '_'
// and '/', with at most 201 bytes between two '/'. No name continues after another one with a '/'.
//
// Each call is atomic, and sees all that was written before it began, by any process. A version
// names one state of an object: two states of different bytes never share it, even when the object was
// deleted in between. It is "" if there is no object, and after a delete one can be made again.
//
// After an error other than ErrConflict the outcome is unknown, and the write may still arrive.
// A KV does not send a write again by itself. It may be called concurrently.
type KV interface {
	// Get returns an object and its version.
	Get(ctx context.Context, name string) (value []byte, version string, err error)

	// Put replaces the object if it still has that version, or makes it if the version is "" and
	// there is none. Otherwise the error is ErrConflict. It returns the new version.
	Put(ctx context.Context, name string, value []byte, version string) (string, error)

	// Delete deletes the object if it still has that version. Otherwise the error is ErrConflict.
	Delete(ctx context.Context, name, version string) error

	// List returns the first names that begin with prefix and come after the name after, in the
	// order of their bytes. It returns limit names at most, and fewer only at the end. The prefix ends
	// with '/'. Names of objects that were deleted may be among them.
	List(ctx context.Context, prefix, after string, limit int) ([]string, error)
}

// Watcher is a KV whose engine tells of changes. A waiter that it tells has its turn sooner than by the
// next poll. Nothing else depends on it: what it tells late, twice or never does no harm.
type Watcher interface {
	// Watch calls changed, which never blocks, when it has begun and after each change of the object
	// by any process. It returns when ctx ends, or when the engine tells no more.
	Watch(ctx context.Context, name string, changed func()) error
}

// Memory is a KV in memory, for tests. The zero value is empty. Versions are digests, as in an
// object storage.
type Memory struct {
	mu      sync.Mutex
	objects map[string]object
}

type object struct {
	value   []byte
	version string
}

// Get implements KV.
func (m *Memory) Get(ctx context.Context, name string) ([]byte, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[name]
	return o.value, o.version, ctx.Err()
}

// Put implements KV.
func (m *Memory) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.changes(ctx, name, version); err != nil {
		return "", err
	}
	if m.objects == nil {
		m.objects = map[string]object{}
	}
	digest := sha256.Sum256(value)
	o := object{slices.Clone(value), hex.EncodeToString(digest[:8])}
	m.objects[name] = o
	return o.version, nil
}

// Delete implements KV.
func (m *Memory) Delete(ctx context.Context, name, version string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.changes(ctx, name, version)
	if err == nil {
		delete(m.objects, name)
	}
	return err
}

func (m *Memory) changes(ctx context.Context, name, version string) error {
	if m.objects[name].version != version {
		return ErrConflict
	}
	return ctx.Err()
}

// List implements KV.
func (m *Memory) List(ctx context.Context, prefix, after string, limit int) (names []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.objects {
		if strings.HasPrefix(name, prefix) && name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(limit, len(names))], ctx.Err()
}

// Wipe deletes all objects.
func (m *Memory) Wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects = nil
}

package model

import (
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// Backend is the data that several stores share.
type Backend struct {
	bug Bug

	mu   sync.Mutex
	last uint64 // highest fence given out
	said uint64 // highest fence that a claim was answered with
	seq  int    // of the last place given out
	keys map[dibs.Key]*state
}

// New returns an empty backend that makes one mistake, or none.
func New(bug Bug) *Backend {
	return &Backend{bug: bug, keys: map[dibs.Key]*state{}}
}

// Open returns a store on the data, in a process whose clock is off by skew.
// A correct store never looks at that clock.
func (b *Backend) Open(skew time.Duration) *Store {
	return &Store{b: b, skew: skew, listeners: map[int]listener{}}
}

// Wipe loses all data.
func (b *Backend) Wipe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys = map[dibs.Key]*state{}
	b.last, b.said = 0, 0
}

// Restart stops the backend and starts it again with the data it had.
func (b *Backend) Restart() {}

// nextFence returns a fence above all others, also above those given out
// before the data was lost, as long as fewer than a million a second were.
func (b *Backend) nextFence(now time.Time) uint64 {
	switch b.bug {
	case FenceCounter:
		b.last++
	case FenceReused:
		b.last = uint64(now.UnixMicro())
	default:
		b.last = max(b.last+1, uint64(now.UnixMicro()))
	}
	return b.last
}

// highest returns a fence that no grant before now is above, also none that was
// given out before the data was lost.
func (b *Backend) highest(now time.Time) uint64 {
	past := uint64(now.UnixMicro()) - 1
	switch b.bug {
	case HeldWithoutFence:
		return 0
	case HeldFenceOfClaims:
		return max(b.said, past-uint64(time.Hour.Microseconds()))
	case HeldFenceFromCount:
		return b.last
	case HeldFenceAhead:
		return max(b.last, past) + uint64(time.Hour.Microseconds())
	}
	return max(b.last, past)
}

// state returns what is known of a key, as of now.
func (b *Backend) state(k dibs.Key, now time.Time) *state {
	k = b.spell(k)
	s := b.keys[k]
	if s == nil {
		s = &state{b: b}
		b.keys[k] = s
	}
	s.advance(now)
	return s
}

// spell returns the key as the backend writes it: as it is, in a correct one.
func (b *Backend) spell(k dibs.Key) dibs.Key {
	switch b.bug {
	case KeyTruncated:
		k.Name = k.Name[:min(len(k.Name), 255)]
	case KeyFolded:
		k.Name = strings.ToLower(k.Name)
	case KeyTrimmed:
		k.Name = strings.TrimRight(k.Name, " ")
	case KeyEndsAtNUL:
		k.Name, _, _ = strings.Cut(k.Name, "\x00")
	case NamespacesMerged:
		k = dibs.Key{Name: k.Namespace + "/" + k.Name}
	}
	return k
}

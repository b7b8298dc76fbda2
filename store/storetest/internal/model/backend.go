package model

import (
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Backend is the data that several stores share.
type Backend struct {
	bug  Bug
	turn time.Duration

	mu   sync.Mutex
	last uint64 // highest fence
	said uint64 // highest fence that a claim was answered with
	seq  int    // last number
	keys map[store.Key]*state
}

// New returns an empty backend with one bug, or none. A pushed grant lasts for turn.
func New(bug Bug, turn time.Duration) *Backend {
	return &Backend{bug: bug, turn: turn, keys: map[store.Key]*state{}}
}

// Open returns a store on the data. It never looks at the clock of its process.
func (b *Backend) Open() *Store {
	return &Store{b: b, listeners: map[int]func(store.Token, store.Answer){}}
}

// Wipe loses all data.
func (b *Backend) Wipe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys = map[store.Key]*state{}
	b.last, b.said = 0, 0
}

// Restart stops the backend and starts it again with the data it had.
func (b *Backend) Restart() {}

// nextFence returns a fence above all others, also above those before the data was lost, if
// they were fewer than a million a second.
func (b *Backend) nextFence(now time.Time) uint64 {
	b.last = max(b.last+1, uint64(now.UnixMicro()))
	return b.last
}

// highest returns a fence at least as high as that of every grant before now, also of those
// before the data was lost.
func (b *Backend) highest(now time.Time) uint64 {
	past := uint64(now.UnixMicro()) - 1
	switch b.bug {
	case HeldFenceOfClaims:
		return max(b.said, past-uint64(time.Hour.Microseconds()))
	case Wakes:
		return 0
	case HeldFenceFromCount:
		return max(b.last, 1)
	}
	return max(b.last, past)
}

// state returns what is known of a key, as of now.
func (b *Backend) state(k store.Key, now time.Time) *state {
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
func (b *Backend) spell(k store.Key) store.Key {
	switch b.bug {
	case KeyTruncated:
		k.Name = k.Name[:min(len(k.Name), 255)]
	case KeyFolded:
		k.Name = strings.ToLower(k.Name)
	case KeyTrimmed:
		k.Name = strings.TrimRight(k.Name, " ")
	case KeyEndsAtNUL:
		k.Name, _, _ = strings.Cut(k.Name, "\x00")
	}
	return k
}

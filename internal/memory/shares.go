package memory

import (
	"sync"
	"sync/atomic"
)

// Shares are the budgets for guarded requests.
type Shares struct {
	Memory   *Budget // of bodies and answers
	Records  *Budget // of records that the store is asked for: a quarter more
	Files    *Budget // of bodies in temporary files: four times as many bytes
	expected atomic.Int64
}

// NewShares returns budgets of most bytes.
func NewShares(most int64) *Shares {
	return &Shares{Memory: New(most), Records: New(most / 4), Files: New(4 * most)}
}

// Resize makes them budgets of most bytes. What is taken stays.
func (s *Shares) Resize(most int64) {
	s.Memory.resize(most)
	s.Records.resize(most / 4)
	s.Files.resize(4 * most)
}

// Process returns the shares of this process, of Limit. They are made at the first call.
var Process = sync.OnceValue(func() *Shares { return NewShares(Limit()) })

// forget is after about how many answers of the store a long record does not count any more.
const forget = 256

// Read notes how long a record was that the store was asked for, or that it got; 0 for none.
func (s *Shares) Read(bytes int) {
	for {
		before, now := s.expected.Load(), int64(bytes)
		if now < before {
			now = before - (before-now+forget-1)/forget
		}
		if s.expected.CompareAndSwap(before, now) {
			return
		}
	}
}

// Expected returns how long the next record may be: as long as the longest one lately.
func (s *Shares) Expected() int64 { return s.expected.Load() }

package serve

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/quantity"
)

// load is what is under way for one credential, or for all. Its memory has three shares, so that no
// flood of claims or large records makes a lease end.
type load struct {
	calls, waiters atomic.Int64
	bodies         *memory.Budget // bodies and elements: half
	records        *memory.Budget // records, and settlements for which leases has no room: three eighths
	leases         *memory.Budget // bodies and elements of renewals and settlements: an eighth
}

// newLoad returns the load of callers that share this number of bytes.
func newLoad(bytes int64) *load {
	return &load{bodies: memory.New(bytes / 2), records: memory.New(bytes / 8 * 3), leases: memory.New(bytes / 8)}
}

// loadOfOne returns the load of one credential, which may take a quarter of the memory, and at least one
// body.
func (c *Config) loadOfOne() *load {
	l := newLoad(c.MaxBodyMemory / 4)
	l.bodies = memory.New(max(c.MaxBodyMemory/8, bodyMemory*c.MaxBody))
	return l
}

// each returns the share of a bound that one credential may take: half. A server that needs none has one
// caller, which may take all.
func (s *Server) each(most int64) int64 {
	if s.shell.IsOpen() {
		return most
	}
	return (most + 1) / 2
}

// take counts n more, unless that is more than most.
func take(n *atomic.Int64, by, most int64) bool {
	if n.Add(by) > most {
		n.Add(-by)
		return false
	}
	return true
}

const (
	// bodyMemory is how many bytes of memory a byte of a body takes, as it arrived and as it is
	// read.
	bodyMemory = 3
	// elementMemory is about how many bytes an element takes, and what is remembered of it while
	// it waits.
	elementMemory = 2 << 10
	// dataMemory is how many bytes a byte of a record takes, as it came and as it is written.
	dataMemory = 5
)

// open gives a call of the credential its memory. leases says that it is for leases that its client has.
func (s *Server) open(x *exchange, by *caller, leases bool) {
	x.records = memory.Open(by.load.records, s.load.records)
	x.memory, x.waits = memory.Open(by.load.bodies, s.load.bodies), leases
	if leases {
		x.memory = memory.Open(by.load.leases, s.load.leases)
	}
}

// take takes n bytes for the body and the elements of a call, and reports whether there was room. A
// renewal and a settlement wait for it.
func (s *Server) take(x *exchange, n int64) bool {
	if x.memory.Try(n) {
		return true
	}
	if !x.waits {
		return false
	}
	ctx, cancel := context.WithTimeout(x.ctx, s.config.StoreTimeout)
	defer cancel()
	return x.records.Wait(ctx, n) == nil
}

// noMemory refuses a call for which there is no memory.
func (s *Server) noMemory(what string) *problem {
	return problemOverloaded.with("The " + what + " of all calls, or of the credential's, take all the memory that is for them. For all calls that is half of the server's GOMEMLIMIT, or 256MiB without one: here " + quantity.SizeText(s.config.MaxBodyMemory) + ".")
}

// errNoMemory is the error of claims that a record may answer, while there is no memory for it.
var errNoMemory = fmt.Errorf("%w: the records of all calls, or of the credential's, take all the memory that is for them, half of the server's GOMEMLIMIT", dibs.ErrBusy)

// A sizer knows whether the records of a store are small.
type sizer struct {
	large int64        // bytes of a large record
	small atomic.Int64 // how many in a row were not
}

// trusted is after how many small records in a row the server counts on more of them.
const trusted = 1000

// note takes the length of a record; 0 for none.
func (s *sizer) note(bytes int) {
	if int64(bytes) >= s.large {
		s.small.Store(0)
	} else {
		s.small.Add(1)
	}
}

// areSmall reports whether the next records are small, for all the server knows.
func (s *sizer) areSmall() bool { return s.small.Load() >= trusted }

package remote

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storekit"
)

// Load is how the rows of keys are loaded.
type Load uint8

const (
	Creating Load = iota // lock the rows, and make those that are missing
	Locking              // lock the rows; a store may make those that are missing
	Passing              // lock the rows, except those that another transaction has locked
	Looking              // read the rows as of one moment, without a lock
	Polling              // the same, for waiters of this process
)

// Server is what a store can do on its server.
type Server struct {
	*Closer
	Listeners storekit.Listeners // clients of this process

	MaxElements int           // of one transaction
	MaxBytes    int           // of one transaction, except for a single element that is larger
	MaxWaiters  int           // of one key
	MaxRecord   int           // bytes
	PushedTTL   time.Duration // of the lease of a pushed grant
	PruneEvery  time.Duration // 0 or less: never in the background
	PollMin     time.Duration // between two polls, after a poll that found a turn
	PollMax     time.Duration // between two polls, when nothing happens
	Busy        error         // another transaction keeps a key's row locked: nothing was done

	// Try makes a call, and makes it again if the server rolled it back. Its error is
	// explained; those of the functions that are called under Try need not be.
	Try func(ctx context.Context, call func() error) error
	// Stuck returns which of the keys another transaction has locked.
	Stuck func(ctx context.Context, keys []string) (map[string]bool, error)
	// Fits returns an error if the server cannot take that much data; nil: it takes all.
	Fits func(data []byte) error

	// Claim, Renew and Settle make the plain elements of part, all of them or none, and return
	// the others. part has the numbers of elements of the call.
	Claim  func(ctx context.Context, part []int, keys []string, claims []store.Claim, answers []store.Answer, process int64) (rest []int, err error)
	Renew  func(ctx context.Context, part []int, keys []string, renewals []store.Renewal, errs []error) (rest []int, err error)
	Settle func(ctx context.Context, part []int, keys []string, settlements []store.Settlement, errs []error) (rest []int, err error)

	// Work loads the batch, calls do, again with more if the batch is Short, writes the
	// Changes and commits.
	Work func(ctx context.Context, how Load, b *engine.Batch, do func()) error
	// List returns up to limit keys of a part from first to last, in their order. It may add
	// keys of other parts.
	List func(ctx context.Context, part storekit.Part, first, last string, limit int) ([]string, error)

	// Sweep begins to go through all keys.
	Sweep func() Sweep
	// TakeSweep does the same in the background, if it is this process's turn; else nil.
	TakeSweep func(ctx context.Context) (Sweep, error)
	// KeepSweep tells the other processes that the sweep is still under way.
	KeepSweep func(ctx context.Context) error

	// Relays says that the waiters of this process may ask elsewhere, see store.Relayer.
	Relays atomic.Bool
	// Process returns the number that the server pushes grants of this process to; 0: it
	// pushes none. It is negative if the process relays.
	Process func() int64
	// Listens reports whether waiters learn of their turns from the server; nil or false:
	// this process polls.
	Listens func() bool
	// Unreached takes tokens that wait and that the server cannot push grants to yet.
	Unreached func(tokens []store.Token)
}

// tries is how often Try makes a call that the server rolls back.
const tries = 8

// tryAgain is the pause before Try makes a call again.
var tryAgain = backoff.Exponential{Min: 2 * time.Millisecond, Max: 16 * time.Millisecond}

// Try makes a call. If the call was undone as a whole, Try makes it again, 8 times at most.
func Try(ctx context.Context, undone func(error) bool, call func() error) error {
	for n := 1; ; n++ {
		err := call()
		if err == nil || n == tries || !undone(err) {
			return err
		}
		if tryAgain.Wait(ctx, n) != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

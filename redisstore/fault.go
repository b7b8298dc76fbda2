package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// What is wrong with the server, for errors.Is. The error's text has the
// server's own words and the cure.
var (
	// ErrUnauthorized: the password, or what the user may do, is not enough.
	ErrUnauthorized = errors.New("redisstore: the server refuses this user")
	// ErrUnreachable: nobody answers at the address, or not in time.
	ErrUnreachable = errors.New("redisstore: the server cannot be reached")
	// ErrUnsupported: who answers is not a Redis of the right kind and age.
	ErrUnsupported = errors.New("redisstore: the server is not one that can be used")
	// ErrReadOnly: the server is a replica, or has no master that takes writes, or
	// moves what is asked for to another.
	ErrReadOnly = errors.New("redisstore: the server takes no writes")
	// ErrForeign: one of our names has a value that is not ours.
	ErrForeign = errors.New("redisstore: a key of ours has a value that is not ours")
	// ErrNotReplicated: not enough replicas acknowledged in time, see
	// Options.Replicas.
	ErrNotReplicated = errors.New("redisstore: not enough replicas acknowledged")
)

// faults are what servers say, by how it begins (without ERR), and what it means. With all
// set nothing of the call was done or will be; otherwise it is one element's.
var faults = []struct {
	begins string
	is     error
	all    bool
	cure   string
}{
	{"QUEUEFULL", dibs.ErrFull, false, "raise Options.MaxWaiters"},
	{"OOM", dibs.ErrFull, false, "the server has reached maxmemory and may not evict; give it more memory"},
	{"Protocol error: invalid bulk length", dibs.ErrTooLarge, true, "raise proto-max-bulk-len"},
	{"WRONGTYPE", ErrForeign, false, "another program uses the same prefix; see Options.Prefix"},
	{"READONLY", ErrReadOnly, true, "this is a replica; connect to the master, or through Sentinel"},
	{"MISCONF", ErrReadOnly, true, "the server cannot save to its disk, and refuses writes until it can"},
	{"NOREPLICAS", ErrReadOnly, true, "the server has fewer replicas than min-replicas-to-write"},
	{"CLUSTERDOWN", ErrReadOnly, true, "some slots of the cluster are served by nobody"},
	{"TRYAGAIN", ErrReadOnly, true, "a slot of the cluster is being moved, and will be there in a moment"},
	{"Script attempted to access a non local key", ErrReadOnly, true, "a slot of the cluster is being moved, and will be there in a moment"},
	{"MASTERDOWN", ErrReadOnly, true, "the master is down; a replica has to be promoted"},
	{"LOADING", ErrReadOnly, true, "the server is loading its data, and will be there in a moment"},
	{"NOAUTH", ErrUnauthorized, true, "the server wants a password: redis://USER:PASSWORD@HOST"},
	{"WRONGPASS", ErrUnauthorized, true, "the user name or the password is wrong"},
	{"NOPERM", ErrUnauthorized, true, "the user needs the rights that the README of redisstore lists"},
	{"The user executing the script", ErrUnauthorized, true, "the user needs the rights that the README of redisstore lists"},
	{"invalid DB index", ErrUnsupported, true, "the server has fewer databases; see databases in its configuration"},
	{"DB index", ErrUnsupported, true, "the server has fewer databases; see databases in its configuration"},
}

// meaning returns what the server's words mean, and whether nothing of the call was done.
// It returns nil when they are not known.
func meaning(said string) (f *backend.Fault, all bool) {
	for _, f := range faults {
		if strings.HasPrefix(strings.TrimPrefix(said, "ERR "), f.begins) {
			return &backend.Fault{Is: f.is, Text: said, Cure: f.cure}, f.all
		}
	}
	return nil, false
}

// explain gives an error of a whole call its meaning.
func explain(err error) error {
	if said, ok := rueidis.IsRedisErr(err); ok {
		if f, _ := meaning(said.Error()); f != nil {
			return f
		}
		return fmt.Errorf("redisstore: the server said: %w", err)
	}
	switch _, known := errors.AsType[*backend.Fault](err); {
	case known:
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("redisstore: %w", err)
	default:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
}

// element gives the meaning of why one element failed: its own error, or one of
// the whole call.
func element(why string) (answer, err error) {
	switch f, all := meaning(why); {
	case f == nil:
		return fmt.Errorf("redisstore: the server said: %s", why), nil
	case all:
		return nil, f
	default:
		return f, nil
	}
}

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// Faults of the server, for errors.Is. The error's text contains the server's own words
// and what to do.
var (
	// ErrUnauthorized: the password is wrong, or the user lacks a right.
	ErrUnauthorized = errtype.New(errtype.Unauthorized, "redisstore: the server refuses this user")
	// ErrUnreachable: no server answers at the address, or not in time.
	ErrUnreachable = errtype.New(errtype.Unreachable, "redisstore: the server cannot be reached")
	// ErrUnsupported: the server is not a Redis, is too old, or is of another kind than
	// the URL says.
	ErrUnsupported = errtype.New(errtype.Unsupported, "redisstore: the server is not supported")
	// ErrReadOnly: the server is a replica, has no master that takes writes, or is moving
	// the key's slot.
	ErrReadOnly = errtype.New(errtype.ReadOnly, "redisstore: the server takes no writes")
	// ErrCrowded: the server has no connection left.
	ErrCrowded = errtype.New(errtype.Crowded, "redisstore: the server has no connection left")
	// ErrForeign: another program has written a value under one of the store's names.
	ErrForeign = errtype.New(errtype.Foreign, "redisstore: another program has written to a key of the store")
	// ErrNotReplicated: not enough replicas acknowledged in time, see Options.Replicas.
	ErrNotReplicated = errtype.New("not_replicated", "redisstore: not enough replicas acknowledged")
)

const crowdedCure = "raise maxclients, or have the applications use fewer connections"

// faults maps the beginning of a server's message (without ERR) to its meaning. all: the
// whole call failed and nothing was done. Otherwise one element failed.
var faults = []struct {
	begins string
	is     error
	all    bool
	cure   string
}{
	{"QUEUEFULL", store.ErrQueueFull, false, "raise Options.MaxWaiters"},
	{"OOM", store.ErrFull, false, "the server has reached maxmemory; give it more memory"},
	{"Protocol error: invalid bulk length", store.ErrTooLarge, true, "raise proto-max-bulk-len"},
	{"WRONGTYPE", ErrForeign, false, "another program uses the same prefix; see Options.Prefix"},
	{"READONLY", ErrReadOnly, true, "this is a replica; connect to the master, or through Sentinel"},
	{"MISCONF", ErrReadOnly, true, "the server cannot save to its disk, and refuses writes until it can"},
	{"NOREPLICAS", ErrReadOnly, true, "the server has fewer replicas than min-replicas-to-write"},
	{"CLUSTERDOWN", ErrReadOnly, true, "some slots of the cluster have no server"},
	{"TRYAGAIN", ErrReadOnly, true, "a slot of the cluster is being moved; try again in a moment"},
	{"ASK", ErrReadOnly, true, "a slot of the cluster is being moved; try again in a moment"},
	{"MOVED", ErrReadOnly, true, "a slot of the cluster has moved; try again in a moment"},
	{"UNBLOCKED", ErrReadOnly, true, "another server becomes the master; try again in a moment"},
	{"BUSY", ErrReadOnly, true, "another client's script does not end; SCRIPT KILL ends it"},
	{"unknown command", ErrUnsupported, true, "the server is too old, or its commands were renamed (rename-command)"},
	{"Script attempted to access a non local key", ErrReadOnly, true, "a slot of the cluster is being moved; try again in a moment"},
	{"MASTERDOWN", ErrReadOnly, true, "the master is down; promote a replica"},
	{"LOADING", ErrReadOnly, true, "the server is loading its data; try again in a moment"},
	{"NOAUTH", ErrUnauthorized, true, "the server wants a password: redis://USER:PASSWORD@HOST"},
	{"WRONGPASS", ErrUnauthorized, true, "the user name or the password is wrong"},
	{"NOPERM", ErrUnauthorized, true, rightsCure},
	{"ACL failure in script", ErrUnauthorized, true, rightsCure},
	{"The user executing the script", ErrUnauthorized, true, rightsCure},
	{"max number of clients", ErrCrowded, true, crowdedCure},
	{"invalid DB index", ErrUnsupported, true, "the server has fewer databases; see databases in its configuration"},
	{"DB index", ErrUnsupported, true, "the server has fewer databases; see databases in its configuration"},
}

const rightsCure = "the user needs the rights that the README of redisstore lists (to list and check only: +@read +@connection)"

// noCommand matches what the server says of a command that the user may not use.
var noCommand = regexp.MustCompile(`no permissions to run the '([^']+)' command`)

// grant returns the cure of an error about a missing right, or "".
func grant(message string) string {
	if m := noCommand.FindStringSubmatch(message); m != nil {
		return "ACL SETUSER … +" + m[1] + "; "
	}
	switch {
	case strings.Contains(message, "access one of the channels"), strings.Contains(message, "access a channel"), strings.Contains(message, "publish to the channel"):
		return "ACL SETUSER … &PREFIX:*, where PREFIX is the store's, by default dibs; "
	case strings.Contains(message, "access one of the keys"), strings.Contains(message, "access a key"), strings.Contains(message, "access the"),
		strings.Contains(message, "access at least one of the keys"):
		return "ACL SETUSER … ~PREFIX:*, where PREFIX is the store's, by default dibs; "
	}
	return ""
}

// meaning returns the meaning of a server's message, and whether the whole call failed.
// It returns nil for an unknown message.
func meaning(message string) (f *storekit.Fault, all bool) {
	for _, f := range faults {
		if strings.HasPrefix(strings.TrimPrefix(message, "ERR "), f.begins) {
			if f.is == ErrUnauthorized {
				f.cure = grant(message) + f.cure
			}
			return &storekit.Fault{Is: f.is, Text: message, Cure: f.cure}, f.all
		}
	}
	return nil, false
}

// explain gives the error of a whole call its meaning. command is the one that the server
// answered; "" if that is not known.
func explain(command string, err error) error {
	if message, ok := rueidis.IsRedisErr(err); ok {
		if command != "" {
			command += ": "
		}
		if f, _ := meaning(message.Error()); f != nil {
			f.Text = command + f.Text
			return f
		}
		return fmt.Errorf("redisstore: the server answered: %s%w", command, err)
	}
	switch _, known := errors.AsType[*storekit.Fault](err); {
	case known:
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("redisstore: %w", err)
	default:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
}

// element gives the failure of one element its meaning: an error of the element, or of
// the whole call.
func element(why string) (answer, err error) {
	switch f, all := meaning(why); {
	case f == nil:
		return fmt.Errorf("redisstore: the server answered: %s", why), nil
	case all:
		return nil, f
	default:
		return f, nil
	}
}

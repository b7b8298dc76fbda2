//go:build unix

package command

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// envHeld has two words for each key that the command runs under, because a command can run dibs
// again: the digest of the key with its store, and the ID of the lease.
const envHeld = "DIBS_HELD"

// nested is the error for a key that the dibs run around this one holds. Waiting for the key would
// never end.
func nested(store string, k dibs.Key) error {
	key := "the key " + strconv.Quote(k.Name)
	if k.Namespace != "" {
		key += " in the namespace " + strconv.Quote(k.Namespace)
	}
	return usagef("%s of the store %s is held by the dibs run that started this one, so waiting for it would never end", key, store)
}

// outer returns the words of envHeld that this program was started with.
func (p *program) outer() []string { return strings.Fields(p.env.Getenv(envHeld)) }

// checkNames refuses a key that is held around this run under the same URL of the store.
func (p *program) checkNames(k dibs.Key) error {
	if url, _ := anystore.Show(p.namedStore()); slices.Contains(p.outer(), digest(url, k)) {
		return nested(url, k)
	}
	return nil
}

// checkLeases refuses a key whose lease in the store is one from around this run. It finds a store
// that has another URL there, and finds nothing if the store's user may not list keys.
func (p *program) checkLeases(ctx context.Context, s *anystore.Store, k dibs.Key) error {
	outer := p.outer()
	in, ok := s.Store.(store.Inspector)
	if len(outer) == 0 || !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for e, err := range in.List(ctx, store.Query{Namespace: &k.Namespace, Name: k.Name}) {
		if err != nil {
			return nil //nolint:nilerr // the claim reports what is wrong with the store
		}
		for _, a := range e.Runs {
			if a.Left > 0 && slices.Contains(outer, a.ID) {
				return nested(s.String(), k)
			}
		}
	}
	return nil
}

// under returns the variable for a command that runs under the lease.
func (p *program) under(s *anystore.Store, lease *dibs.Lease) string {
	return envHeld + "=" + strings.Join(append(p.outer(), digest(s.String(), lease.Key()), lease.ID()), " ")
}

// digest names a key of a store in the environment.
func digest(store string, k dibs.Key) string {
	sum := sha256.Sum256([]byte(store + "\x00" + k.Namespace + "\x00" + k.Name))
	return hex.EncodeToString(sum[:16])
}

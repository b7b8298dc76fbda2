package casstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
)

// ErrUnconditional is the error of Open if the engine does not heed the condition of a write, or
// does not read what was written. It has lost updates, so two callers could get one key.
var ErrUnconditional = errors.New("casstore: the engine does not replace objects conditionally")

// prove proves on an object that nobody else has that the KV does what it promises.
func prove(ctx context.Context, kv KV) error {
	name := "probe/" + strings.ToLower(rand.Text())
	one, two := []byte("1 "+rand.Text()), []byte("2 "+rand.Text())
	wrong := func(what string) error { return fmt.Errorf("%w: %s", ErrUnconditional, what) }
	// refused reports whether a write whose condition does not hold was refused.
	refused := func(what string, err error) error {
		switch {
		case err == nil:
			return wrong(what)
		case errors.Is(err, ErrConflict):
			return nil
		}
		return err
	}
	reads := func(want []byte, version string) error {
		got, v, err := kv.Get(ctx, name)
		if err == nil && (v != version || !bytes.Equal(got, want)) {
			err = wrong("what was written is not what is read")
		}
		return err
	}
	first, err := kv.Put(ctx, name, one, "")
	if err != nil {
		return err
	}
	if err := reads(one, first); err != nil {
		return err
	}
	_, err = kv.Put(ctx, name, two, "")
	if err := refused("an object was made although there was one", err); err != nil {
		return err
	}
	second, err := kv.Put(ctx, name, two, first)
	if err != nil {
		return err
	}
	if second == first {
		return wrong("two states of an object have one version")
	}
	_, err = kv.Put(ctx, name, one, first)
	if err := refused("an object was replaced although it had changed", err); err != nil {
		return err
	}
	if err := refused("an object was deleted although it had changed", kv.Delete(ctx, name, first)); err != nil {
		return err
	}
	if err := reads(two, second); err != nil {
		return err
	}
	if err := kv.Delete(ctx, name, second); err != nil {
		return err
	}
	if err := reads(nil, ""); err != nil {
		return err
	}
	_, err = kv.Put(ctx, name, one, second)
	return refused("an object was replaced although there was none", err)
}

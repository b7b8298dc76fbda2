package casstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// ErrUnconditional is the error of Open if the engine does not heed the condition of a write, or
// does not read what was written. It has lost updates, so two callers could get one key.
var ErrUnconditional = errors.New("casstore: the engine does not replace objects conditionally")

var oneVersion = wrong("two states of an object have one version")

// racers is how many writers Open has meet on one object.
const racers = 4

// probe is an object on which it is proved what a KV does.
type probe struct {
	kv   KV
	name string
}

// prove proves on an object that nobody else has that the KV does what it promises. keeps says
// that it ignores the condition of Delete.
func prove(ctx context.Context, kv KV) (keeps bool, err error) {
	p := &probe{kv, "probe/" + strings.ToLower(rand.Text())}
	_, first, err := p.race(ctx, "")
	if err != nil {
		return false, err
	}
	last, second, err := p.race(ctx, first)
	if err == nil && second == first {
		err = oneVersion
	}
	if err != nil {
		return false, err
	}
	err = kv.Delete(ctx, p.name, first)
	if keeps = err == nil; errors.Is(err, ErrConflict) {
		if err = p.reads(ctx, last, second); err == nil {
			err = kv.Delete(ctx, p.name, second)
		}
	}
	if err == nil {
		err = p.reads(ctx, nil, "")
	}
	if err != nil {
		return keeps, err
	}
	if _, err := kv.Put(ctx, p.name, text(), second); err == nil {
		return keeps, wrong("an object was replaced although there was none")
	} else if !errors.Is(err, ErrConflict) {
		return keeps, err
	}
	switch third, err := kv.Put(ctx, p.name, text(), ""); {
	case errors.Is(err, ErrConflict):
		return keeps, wrong("an object that was deleted cannot be made again")
	case err != nil:
		return keeps, err
	case third == first || third == second:
		return keeps, oneVersion
	default:
		return keeps, kv.Delete(ctx, p.name, third)
	}
}

// race has writers replace the object with that version at once, until one does, and returns what
// it wrote and the new version.
func (p *probe) race(ctx context.Context, version string) ([]byte, string, error) {
	for range maxTries {
		var all sync.WaitGroup
		var versions [racers]string
		var errs [racers]error
		var texts [racers][]byte
		for i := range racers {
			texts[i] = text()
			all.Go(func() { versions[i], errs[i] = p.kv.Put(ctx, p.name, texts[i], version) })
		}
		all.Wait()
		won := -1
		for i, err := range errs {
			switch {
			case err == nil && won >= 0:
				return nil, "", wrong("of several writes at once on one state of an object, more than one was made")
			case err == nil:
				won = i
			case !errors.Is(err, ErrConflict):
				return nil, "", err
			}
		}
		if won >= 0 {
			return texts[won], versions[won], p.reads(ctx, texts[won], versions[won])
		}
	}
	return nil, "", errBusy
}

// reads reads the object, which must be so.
func (p *probe) reads(ctx context.Context, want []byte, version string) error {
	got, v, err := p.kv.Get(ctx, p.name)
	if err == nil && (v != version || !bytes.Equal(got, want)) {
		err = wrong("what was written is not what is read")
	}
	return err
}

func wrong(what string) error { return fmt.Errorf("%w: %s", ErrUnconditional, what) }

func text() []byte { return []byte(rand.Text()) }

// Check implements store.Checker. It proves again on an object of its own what Open proves, and
// asks the KV if it is a store.Checker, too.
func (s *Store) Check(ctx context.Context) ([]store.Finding, error) {
	var c storekit.Checkup
	keeps, err := prove(ctx, s.kv)
	switch {
	case errors.Is(err, ErrUnconditional):
		c.Danger(true, "conditions", "Two callers can get one key: "+strings.TrimPrefix(err.Error(), "casstore: ")+".", "Use another engine.")
	case err != nil && s.options.ReadOnly:
		c.Unchecked(true, "conditions", fmt.Sprintf("It is unknown whether the engine heeds the conditions of writes: %v.", err),
			"Have Check run by a user who may write.")
	case err != nil:
		return nil, err
	}
	c.Advice(keeps, "deletes", "The engine ignores the condition of a delete, so the objects of keys stay after their use.",
		"Use few keys, or delete the objects while no process uses the store.")
	if k, ok := s.kv.(store.Checker); ok {
		found, err := k.Check(ctx)
		if err != nil {
			return nil, err
		}
		c.Add(found...)
	}
	return c.Findings(), nil
}

package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) release() *cobra.Command {
	var s selection
	var yes bool
	var place string
	cmd := &cobra.Command{
		Use:   "release KEY | --id ID | --glob PATTERN | --place ID",
		Short: "Take a key away from its holder",
		Long: `Ends the leases of a key, or with --id one of them. The next waiter gets the key
at once. The former holder notices within a third of its lease: "dibs run" then
ends its command, and a program finds its context cancelled. Until then both
holders run. First make sure that the former holder is dead, or that its work
can bear a second holder (see docs/guides/critical-sections.md).

--place removes a reserved place instead, for example of a job that was deleted.
"dibs show KEY" lists the places.

Records stay; "dibs forget" deletes them. Asks before it changes anything,
unless --yes is given. Exits with 1 if the key has no holder, or there is no
such place.`,
		Example: `  dibs release nightly-report
  dibs release --id q7k2v5m3x4zabcde --yes
  dibs release --place e3b7nq5x2mzk4avd --yes`,
		Args: oneKey,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			byPlace := cmd.Flags().Changed("place")
			var err error
			if byPlace {
				err = checkPlace(place, cmd.Flags(), args)
			} else {
				err = s.read(cmd.Flags(), args)
			}
			if err != nil {
				return err
			}
			return p.operate(cmd.Context(), func(store *anystore.Store, in store.Inspector) error {
				if byPlace {
					return p.releasePlace(cmd.Context(), store.Store, in, place, yes, cmd.Flags())
				}
				return p.releaseAll(cmd.Context(), in, &s, yes, cmd.Flags())
			})
		}),
	}
	s.bind(cmd.Flags())
	s.bindGlob(cmd.Flags())
	cmd.Flags().StringVar(&place, "place", "", "the `ID` of a reserved place")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	p.storeFlags(cmd.Flags())
	p.completeKeys(cmd, store.ConditionHeld)
	return cmd
}

func (p *program) releaseAll(ctx context.Context, in store.Inspector, s *selection, yes bool, fs *pflag.FlagSet) error {
	found, err := p.find(ctx, in, s, fs, false)
	if err != nil {
		return err
	}
	held := slices.DeleteFunc(slices.Clone(found), func(e store.Entry) bool { return len(holdersOf(e, s.id)) == 0 })
	if len(held) == 0 {
		if found[0].Condition == store.ConditionUnknown {
			return absentf("there is no holder of %s; the outcome of its last attempt is unknown: see dibs resolve --help", s)
		}
		return absentf("there is no holder of %s", s)
	}
	names := make([]string, len(held))
	for i, e := range held {
		names[i] = quote(e.Key.Name)
	}
	if err := p.confirm("Take "+several(names)+" away from its holder?", yes); err != nil {
		return err
	}
	released := 0
	for _, e := range held {
		n := 0
		for _, id := range holdersOf(e, s.id) { // a later holder has another ID
			ended, err := forceRelease(ctx, in, e.Key, id)
			if err != nil {
				return err
			}
			n += ended
		}
		switch {
		case n == 0:
			continue // the holder has settled it meanwhile
		case e.Waiters > 0:
			fmt.Fprintf(p.env.Stdout, "%s is released: the next waiter gets it\n", quote(e.Key.Name))
		default:
			fmt.Fprintf(p.env.Stdout, "%s is released\n", quote(e.Key.Name))
		}
		released++
	}
	if released == 0 {
		return absentf("there is no holder of %s any more", s)
	}
	return nil
}

// forceRelease ends the lease with the ID.
func forceRelease(ctx context.Context, in store.Inspector, key dibs.Key, id string) (int, error) {
	return ask(ctx, "force release", func(ctx context.Context) (int, error) { return in.ForceRelease(ctx, key, id) })
}

// checkPlace refuses what --place cannot be used with, and what is not an ID.
func checkPlace(id string, fs *pflag.FlagSet, args []string) error {
	switch {
	case len(args) > 0 || fs.Changed("key") || fs.Changed("id") || fs.Changed("glob"):
		return usagef("--place: it cannot be used together with a key, --id or --glob")
	case !isID(id):
		return usagef("--place: %s is not an ID: it has 16 characters, a to z and 2 to 7", quote(id))
	}
	return nil
}

// releasePlace removes a reserved place.
func (p *program) releasePlace(ctx context.Context, s dibs.Store, in store.Inspector, id string, yes bool, fs *pflag.FlagSet) error {
	key, place, err := p.findPlace(ctx, in, id, fs)
	if err != nil {
		return err
	}
	if !place.Reserved {
		return absentf("the place %s is not reserved: %s waits for %s now; end that process, and its place is removed", id, quote(ownerText(place.Owner)), quote(key.Name))
	}
	if err := p.confirm("Remove the place of "+quote(ownerText(place.Owner))+" in the queue of "+quote(key.Name)+"?", yes); err != nil {
		return err
	}
	_, err = ask(ctx, "settle", func(ctx context.Context) (struct{}, error) {
		errs := make([]error, 1)
		err := s.Settle(ctx, []store.Settlement{{Key: key, Token: place.Token, Outcome: store.Release}}, errs)
		return struct{}{}, cmp.Or(err, errs[0])
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.env.Stdout, "the place %s of %s is removed\n", id, quote(key.Name))
	return nil
}

// findPlace looks for a place in all keys, or in those of the namespace if one was named.
func (p *program) findPlace(ctx context.Context, in store.Inspector, id string, fs *pflag.FlagSet) (dibs.Key, store.PlaceInfo, error) {
	q := store.Query{Places: true, Conditions: live}
	if fs.Changed("namespace") {
		q.Namespace = &p.namespace
	}
	for e, err := range entries(ctx, in, q) {
		if err != nil {
			return e.Key, store.PlaceInfo{}, err
		}
		for _, place := range e.Places {
			if place.Token.ID() == id {
				return e.Key, place, nil
			}
		}
	}
	return dibs.Key{}, store.PlaceInfo{}, absentf("there is no place %s", id)
}

// holdersOf returns the IDs of the leases of a key, or only that one if it is not "".
func holdersOf(e store.Entry, id string) (ids []string) {
	for _, a := range e.Runs {
		if a.Left > 0 && (id == "" || a.ID == id) {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

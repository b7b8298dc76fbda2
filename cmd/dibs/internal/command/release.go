package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
)

func (p *program) release() *cobra.Command {
	var s selection
	var yes bool
	var place string
	cmd := &cobra.Command{
		Use:   "release KEY | --id ID | --glob PATTERN | --place ID",
		Short: "Take a key away from whoever holds it",
		Long: `Ends the leases of a key, whoever holds them, or with --id one of them. Whoever
waits moves up at once. The former holder notices within a third of its lease:
"dibs run" then ends its command, and a program finds its context dead. Until
then it works on, beside the next holder; so first make sure that it is dead, or
that what it does bears a second one (see docs/guides/fences.md).

With --place a reserved place is taken away instead, of a job that was deleted
for example. "dibs show KEY" lists them.

Records stay; "dibs forget" is for those. Asks before it changes anything,
unless there is --yes. Ends with 1 when nobody held the key, or there is no such
place.`,
		Example: `  dibs release nightly-report
  dibs release --id q7k2v5m3x4zabcde --yes
  dibs release --place e3b7nq5x2mzk4avd --yes`,
		Args: cobra.MaximumNArgs(1),
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("place") {
				return p.releasePlace(cmd.Context(), place, yes, cmd.Flags(), args)
			}
			if err := s.read(cmd.Flags(), args); err != nil {
				return err
			}
			return p.releaseAll(cmd.Context(), &s, yes, cmd.Flags())
		}),
	}
	s.bind(cmd.Flags())
	s.bindGlob(cmd.Flags())
	cmd.Flags().StringVar(&place, "place", "", "the `ID` of a reserved place")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	p.storeFlags(cmd.Flags())
	return cmd
}

func (p *program) releaseAll(ctx context.Context, s *selection, yes bool, fs *pflag.FlagSet) error {
	store, err := p.look(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	in, err := store.Inspector()
	if err != nil {
		return err
	}
	look, cancel := context.WithTimeout(ctx, askLimit)
	found, err := p.find(look, in, s, fs, false)
	cancel()
	if err != nil {
		return err
	}
	held := slices.DeleteFunc(slices.Clone(found), func(e dibs.Entry) bool { return !releasable(e, s.id) })
	if len(held) == 0 {
		if found[0].Condition == dibs.ConditionUnknown {
			return absentf("nobody holds %s; the outcome of its last attempt is unknown: see dibs settle --help", s)
		}
		return absentf("nobody holds %s", s)
	}
	names := make([]string, len(held))
	for i, e := range held {
		names[i] = quote(e.Key.Name)
	}
	if err := p.confirm("Take "+several(names)+" away from whoever holds it?", yes); err != nil {
		return err
	}
	released := 0
	for _, e := range held {
		ask, cancel := context.WithTimeout(ctx, askLimit)
		n, err := in.ForceRelease(ask, e.Key, s.id)
		cancel()
		switch {
		case err != nil:
			return &dibs.StoreError{Op: "force release", Err: err}
		case n == 0:
			continue // its holder was faster
		case e.Waiters > 0:
			fmt.Fprintf(p.env.Stdout, "%s is released: who waits moves up\n", quote(e.Key.Name))
		default:
			fmt.Fprintf(p.env.Stdout, "%s is released\n", quote(e.Key.Name))
		}
		released++
	}
	if released == 0 {
		return absentf("nobody holds %s any more", s)
	}
	return nil
}

// releasePlace takes a reserved place away.
func (p *program) releasePlace(ctx context.Context, id string, yes bool, fs *pflag.FlagSet, args []string) error {
	switch {
	case len(args) > 0 || fs.Changed("key") || fs.Changed("id") || fs.Changed("glob"):
		return usagef("place: it names one place by itself; leave out the key, --id and --glob")
	case !isID(id):
		return usagef("place: %s is not an ID: it has 16 characters, a to z and 2 to 7", quote(id))
	}
	store, err := p.look(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	in, err := store.Inspector()
	if err != nil {
		return err
	}
	key, place, err := p.findPlace(ctx, in, id, fs)
	if err != nil {
		return err
	}
	if !place.Reserved {
		return absentf("the place %s is that of %s, which waits for %s now: end that, and the place goes with it", id, quote(ownerText(place.Owner)), quote(key.Name))
	}
	if err := p.confirm("Take the place of "+quote(ownerText(place.Owner))+" away from "+quote(key.Name)+"?", yes); err != nil {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	errs := make([]error, 1)
	err = store.Settle(ask, []dibs.Settlement{{Key: key, Token: place.Token, Outcome: dibs.Release}}, errs)
	if err = cmp.Or(err, errs[0]); err != nil {
		return &dibs.StoreError{Op: "settle", Err: err}
	}
	fmt.Fprintf(p.env.Stdout, "the place %s of %s is taken away\n", id, quote(key.Name))
	return nil
}

// findPlace looks for a place in all keys, or in those of the namespace if one was named.
func (p *program) findPlace(ctx context.Context, in dibs.Inspector, id string, fs *pflag.FlagSet) (dibs.Key, dibs.PlaceInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	q := dibs.Query{Places: true}
	if fs.Changed("namespace") {
		q.Namespace = &p.namespace
	}
	for e, err := range in.List(ctx, q) {
		if err != nil {
			return e.Key, dibs.PlaceInfo{}, &dibs.StoreError{Op: "list", Err: err}
		}
		for _, place := range e.Places {
			if place.Token.ID() == id {
				return e.Key, place, nil
			}
		}
	}
	return dibs.Key{}, dibs.PlaceInfo{}, absentf("there is no place %s", id)
}

// releasable reports whether somebody holds the key, under that ID if it is not
// "".
func releasable(e dibs.Entry, id string) bool {
	return slices.ContainsFunc(e.Attempts, func(a dibs.Attempt) bool { return a.Left > 0 && (id == "" || a.ID == id) })
}

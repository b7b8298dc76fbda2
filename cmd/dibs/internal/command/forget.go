package command

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) forget() *cobra.Command {
	var s selection
	var yes bool
	cmd := &cobra.Command{
		Use:   "forget KEY ... | --id ID | --glob PATTERN",
		Short: "Delete the record of a key, so that its next request runs",
		Long: `Deletes the record of a key: a stored answer, or an abandoned attempt. The next
request with the key runs as if it were the first, and so does the next
"dibs run --once-per". A holder keeps its key.

--id deletes only the record or the attempt of that ID. What comes after dibs
has read the key is not deleted.

Asks before it changes anything, unless --yes is given. Exits with 1 if one of
the keys has no record.`,
		Example: `  dibs forget 'http:GQ0p0hV7Hq3b8QkHn1oSLg:order-17'
  dibs forget --yes urn:dibs:claim:q7k2v5m3x4zabcde
  dibs forget --glob 'backup*'`,
		Args: cobra.ArbitraryArgs,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			all, err := selections(s, cmd.Flags(), args)
			if err != nil {
				return err
			}
			return p.operate(cmd.Context(), func(_ *anystore.Store, in store.Inspector) error {
				return p.forgetAll(cmd.Context(), in, all, yes, cmd.Flags())
			})
		}),
	}
	s.bind(cmd.Flags())
	s.bindGlob(cmd.Flags())
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	p.storeFlags(cmd.Flags())
	p.completeKeys(cmd, store.ConditionDone, store.ConditionUnknown, store.ConditionAbandoned)
	return cmd
}

// selections returns a selection for each argument, or one for the flags.
func selections(s selection, fs *pflag.FlagSet, args []string) ([]selection, error) {
	if len(args) <= 1 || fs.Changed("key") || fs.Changed("id") || fs.Changed("glob") {
		if err := s.read(fs, args); err != nil {
			return nil, err
		}
		return []selection{s}, nil
	}
	var all []selection
	for _, arg := range args {
		var one selection
		if err := one.read(fs, []string{arg}); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func (p *program) forgetAll(ctx context.Context, in store.Inspector, all []selection, yes bool, fs *pflag.FlagSet) error {
	var chosen []store.Entry
	var names []string
	var missing []error
	for i := range all {
		found, err := p.find(ctx, in, &all[i], fs, false)
		if errors.Is(err, errAbsent) {
			missing = append(missing, err)
			continue
		} else if err != nil {
			return err
		}
		for _, e := range found {
			if all[i].glob != "" && len(forgettable(e)) == 0 {
				continue
			}
			if all[i].id != "" {
				leaveOnly(&e, all[i].id)
			}
			chosen = append(chosen, e)
			names = append(names, quote(e.Key.Name))
		}
	}
	if len(chosen) == 0 {
		if len(missing) == 0 { // only a pattern leaves keys out
			missing = append(missing, absentf("no key that matches %s has a record to forget", quote(all[0].glob)))
		}
		return errors.Join(missing...)
	}
	if err := p.confirm("Forget "+several(names)+"?", yes); err != nil {
		return err
	}
	for _, e := range chosen {
		name, forgotten := quote(e.Key.Name), false
		ids := forgettable(e)
		for _, id := range ids {
			done, err := ask(ctx, "forget", func(ctx context.Context) (bool, error) { return in.Forget(ctx, e.Key, id) })
			if err != nil {
				return err
			}
			forgotten = forgotten || done
		}
		switch {
		case len(ids) == 0:
			missing = append(missing, absentf("%s has no record to forget; it is held or waited for", name))
		case !forgotten:
			missing = append(missing, absentf("%s has changed meanwhile: nothing was forgotten", name))
		default:
			fmt.Fprintf(p.env.Stdout, "%s is forgotten: its next request runs\n", name)
		}
	}
	return errors.Join(missing...)
}

// leaveOnly leaves of an entry only what has the ID.
func leaveOnly(e *store.Entry, id string) {
	e.Runs = slices.DeleteFunc(slices.Clone(e.Runs), func(a store.Run) bool { return a.ID != id })
	if e.Record != nil && e.Record.ID != id {
		e.Record = nil
	}
}

// forgettable returns the IDs of what Forget would delete. What comes after the entry was read, and
// maybe while the operator is asked, has another ID.
func forgettable(e store.Entry) (ids []string) {
	if e.Record != nil {
		ids = append(ids, e.Record.ID)
	}
	for _, a := range e.Runs {
		if a.Left <= 0 {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

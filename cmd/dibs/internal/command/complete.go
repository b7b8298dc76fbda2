package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// complete makes a shell complete a flag's values.
func complete(cmd *cobra.Command, flag string, values ...string) {
	// The error is for a flag that does not exist, which TestCompletion would find.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// texts returns the texts of conditions.
func texts(all []store.Condition) []string {
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = string(c)
	}
	return names
}

const (
	// completeLimit bounds how long a shell waits for keys.
	completeLimit = 2 * time.Second
	// maxCompleted is how many keys a shell gets.
	maxCompleted = 100
)

// completeKeys makes a shell complete the argument KEY from the store, with keys in these states.
func (p *program) completeKeys(cmd *cobra.Command, states ...store.Condition) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
		case cmd.Name() == "run":
			return nil, cobra.ShellCompDirectiveDefault // of the command
		case cmd.Name() != "forget":
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
		defer cancel()
		q := store.Query{Namespace: &p.namespace, Match: func(k dibs.Key) bool {
			// A shell would read another key in another way, or show it in another way.
			return strings.HasPrefix(k.Name, begun) && cell(k.Name) == k.Name && !slices.Contains(args, k.Name)
		}}
		// An error is not an answer here: the command itself will report it.
		_ = p.look(ctx, func(_ *anystore.Store, in store.Inspector) error {
			for _, q.Conditions = range [][]store.Condition{withoutDone(states), onlyDone(states)} {
				if len(q.Conditions) == 0 {
					continue
				}
				for e, err := range in.List(ctx, q) {
					if err != nil || len(names) == maxCompleted {
						return err
					}
					names = append(names, e.Key.Name)
				}
			}
			return nil
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// withoutDone returns the states of keys that something happens to, which come first.
func withoutDone(states []store.Condition) []store.Condition {
	return slices.DeleteFunc(slices.Clone(states), func(c store.Condition) bool { return c == store.ConditionDone })
}

func onlyDone(states []store.Condition) []store.Condition {
	return slices.DeleteFunc(slices.Clone(states), func(c store.Condition) bool { return c != store.ConditionDone })
}

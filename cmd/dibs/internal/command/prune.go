package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) prune() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what has expired, now",
		Long: `Removes, in all namespaces, records whose retention is over, places of dead
waiters, and attempts that were abandoned long ago. Then it frees the space. It
asks nothing, because it removes nothing that has an effect.

A store does this in the background while a proxy or another long-running
program has it open. If only "dibs run" uses a store, prune it now and then.
Prints how many were removed.`,
		Example: `  dibs prune
  dibs prune --store sqlite:/var/lib/dibs/dibs.db`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			return p.operate(cmd.Context(), func(store *anystore.Store, _ store.Inspector) error {
				return p.pruneAll(cmd.Context(), store)
			})
		}),
	}
	p.storeFlag(cmd.Flags())
	return cmd
}

func (p *program) pruneAll(ctx context.Context, s *anystore.Store) error {
	pruner, ok := s.Store.(store.Pruner)
	if !ok {
		return fmt.Errorf("%w: %s removes by itself what has expired, so there is nothing to prune", anystore.ErrUnusable, s)
	}
	n, err := pruner.Prune(ctx, 0)
	if err != nil {
		return &dibs.StoreError{Op: "prune", Err: err}
	}
	fmt.Fprintf(p.env.Stdout, "removed %d\n", n)
	return nil
}

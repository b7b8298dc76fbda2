package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/stores"
)

func (p *program) prune() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what has ended, now",
		Long: `Removes records whose retention is over, places of waiters that are gone, and
attempts that were abandoned long ago, of all namespaces, and gives the space
back. Nothing that still counts is touched, so there is nothing to ask.

Stores do this by themselves, in the background, while a proxy or another
long-running program has them open. A store that only "dibs run" uses is worth a
prune now and then. Prints how many were removed.`,
		Example: `  dibs prune
  dibs prune --store sqlite:/var/lib/dibs/dibs.db`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			store, err := p.look(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close()
			return p.pruneAll(cmd.Context(), store)
		}),
	}
	p.storeFlags(cmd.Flags())
	return cmd
}

func (p *program) pruneAll(ctx context.Context, store *stores.Store) error {
	pruner, ok := store.Store.(dibs.Pruner)
	if !ok {
		return fmt.Errorf("%w: %s forgets by itself, there is nothing to prune", stores.ErrUnusable, store)
	}
	n, err := pruner.Prune(ctx, 0)
	if err != nil {
		return &dibs.StoreError{Op: "prune", Err: err}
	}
	fmt.Fprintf(p.env.Stdout, "removed %d\n", n)
	return nil
}

package command

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/race"
	"github.com/dibs-go/dibs/cmd/dibs/internal/stores"
)

func (p *program) race() *cobra.Command {
	var processes bool
	cmd := &cobra.Command{
		Use:   "race",
		Short: "Watch updates get lost, and a lock prevent it",
		Long: `Five workers each read a number, think for a moment, add one and write it back:
first as they please, so that some overwrite what others wrote, and then one at
a time, while holding a key of the store.

The workers are goroutines, or with --processes five processes. The number is in
the store's database if that is a server, else in a file of its own, beside the
store's file where it has one. Number and key are removed at the end. Ends with
1 unless updates were lost without the key and none with it.`,
		Example: `  dibs race
  dibs race --processes --store sqlite:/var/lib/dibs/dibs.db
  dibs race --processes --store redis://cache.internal`,
		Args: cobra.NoArgs,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			url := p.storeOf()
			if processes && strings.HasPrefix(url, "memory:") {
				return usagef("processes: they share no store in memory: name another with --store")
			}
			return p.runRace(cmd.Context(), url, processes)
		}),
	}
	cmd.Flags().BoolVar(&processes, "processes", false, "let processes race instead of goroutines")
	p.storeFlags(cmd.Flags())
	return cmd
}

func (p *program) runRace(ctx context.Context, url string, processes bool) error {
	store, err := stores.Open(ctx, url)
	if err != nil {
		return err
	}
	defer store.Close()
	return race.Run(ctx, race.Options{Store: store, URL: url, Namespace: p.namespace, Processes: processes}, p.env.Stdout)
}

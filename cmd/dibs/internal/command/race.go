package command

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/race"
	"github.com/dibs-go/dibs/internal/stores"
)

func (p *program) race() *cobra.Command {
	var processes bool
	cmd := &cobra.Command{
		Use:   "race",
		Short: "Watch updates get lost, and a lock prevent it",
		Long: `Five workers each read a number, think for a moment, add one and write it back:
first as they please, so that some overwrite what others wrote, and then in the
ways that prevent it, each with the time that it took:

  row lock        SELECT … FOR UPDATE; with SQLite, BEGIN IMMEDIATE
  version column  written only if nobody else has, or else begun again
  advisory lock   pg_advisory_xact_lock; with MySQL, GET_LOCK
  with dibs       while holding a key of the store, whatever the number is in

The workers are goroutines, or with --processes five processes. The number is a
row of a table in the store's database: in its schema, or for a SQLite store in
a file beside its own. With Redis it is a key, and in memory a file, and dibs is
all there is. Table, number and key are removed at the end. Ends with 1 unless
updates were lost without a lock and none with one.`,
		Example: `  dibs race
  dibs race --processes --store sqlite:/var/lib/dibs/dibs.db
  dibs race --processes --store redis://cache.internal
  dibs race --store postgres://app@db.internal/app`,
		Args: flagsOnly,
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

package command

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/race"
	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) race() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "race",
		Short: "Show updates that get lost, and a lock that prevents it",
		Long: `Five processes each read a number from a file, think for a moment, add one and
write it back. First they use no lock, so some overwrite what others wrote. Then
each holds a key of the store meanwhile, so every update counts.

The file is a temporary one, and so is the store if none is named. File and key
are removed at the end. Exits with 1 unless updates were lost without a lock and
none with it.`,
		Example: `  dibs race
  dibs race --store redis://cache.internal
  dibs race --store postgres://app@db.internal/app`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			url := p.namedStore()
			if url == "" {
				folder, err := os.MkdirTemp("", "dibs-race-*")
				if err != nil {
					return err
				}
				defer os.RemoveAll(folder)
				if folder, err = filepath.Abs(folder); err != nil { // because TMPDIR can be relative
					return err
				}
				url = "sqlite:" + filepath.Join(folder, "dibs.db")
			}
			if strings.HasPrefix(url, "memory:") {
				return usagef("race: processes cannot share a store in memory; name another store with --store")
			}
			// A store that cannot be used is reported once, not by each process.
			store, err := anystore.Open(cmd.Context(), url)
			if err != nil {
				return err
			}
			defer store.Close()
			return race.Run(cmd.Context(), race.Options{Store: url, Namespace: p.namespace}, p.env.Stdout)
		}),
	}
	p.storeFlags(cmd.Flags())
	return cmd
}

package command

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/demo"
	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) demo() *cobra.Command {
	var exit bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show lost updates and duplicate requests, and what dibs does",
		Long: `Shows two things, each first without dibs and then with it.

Five processes each read a number from a file, think for a moment, add one and
write it back. Without a lock, some overwrite what others wrote. Under "dibs
run", every update counts.

A small payments service gets duplicates and retries through two proxies, one of
which is killed half-way. The charges are printed side by side. Then it
continues to serve until Ctrl-C, and names a few things to try.

Uses only the loopback interface and a temporary folder, unless --store or
DIBS_STORE names a store that several processes can share. Exits with 1 if dibs
lost an update or an order, or let an order be charged twice, or if no update
was lost without a lock.`,
		Example: `  dibs demo
  dibs demo --exit --store sqlite:/tmp/demo.db
  dibs demo --store redis://localhost`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			o := demo.Options{Store: p.namedStore(), Exit: exit}
			if o.Store != "" {
				_, o.Secret = anystore.Show(o.Store)
			}
			if strings.HasPrefix(o.Store, "memory:") {
				return usagef("--store: the demo's processes cannot share a store in memory; name another store")
			}
			if o.Store != "" {
				// A store that cannot be used is reported before anything begins.
				store, err := anystore.Open(cmd.Context(), o.Store, anystore.ToUse)
				if err == nil {
					err = store.Close()
				}
				if err != nil {
					return err
				}
			}
			return demo.Run(cmd.Context(), o, p.env.Stdout)
		}),
	}
	cmd.Flags().BoolVar(&exit, "exit", false, "end after the table")
	p.storeFlag(cmd.Flags())
	return cmd
}

package command

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/stores"
)

func (p *program) demo() *cobra.Command {
	var exit bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch duplicates turn into one effect",
		Long: `Runs a small payments service, first bare and then behind two guarding proxies,
in the same storm of duplicates, impatient retries and a proxy that is killed in
the middle. Prints side by side what the service's ledger says, then serves on
and names a few things to try, until Ctrl-C.

Uses the loopback interface and a temporary folder only, unless --store or
DIBS_STORE names a store that several processes can share. Ends with 1 if, with
dibs, an order was charged twice or lost.`,
		Example: `  dibs demo
  dibs demo --exit --store sqlite:/tmp/demo.db
  dibs demo --store redis://localhost`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			o := demo.Options{Store: p.storeURL, Namespace: p.namespace, Exit: exit}
			if o.Store == "" {
				o.Store = p.env.Getenv("DIBS_STORE")
			}
			if o.Store != "" {
				_, o.Secret = stores.Show(o.Store)
			}
			if strings.HasPrefix(o.Store, "memory:") {
				return usagef("store: the demo's two proxies share a store, and a store in memory has one process only")
			}
			if o.Store != "" {
				// What is wrong with it is said before anything begins.
				store, err := stores.Open(cmd.Context(), o.Store)
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
	p.storeFlags(cmd.Flags())
	return cmd
}

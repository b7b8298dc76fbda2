package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/internal/stores"
)

func (p *program) migrate() *cobra.Command {
	var printed bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make the store's tables",
		Long: `Makes the tables that a store in a SQL database keeps its keys in, unless they
are there, and says what it did. Ten hosts that start at once may all do it. The
user that runs it needs more rights than the one that the proxy uses.

Those who only try dibs out need not: a command that makes use of a store makes
missing tables by itself, if its user may.

--print prints the SQL instead, for those who apply it by other means, and
connects to nothing. A SQLite file is made by whoever opens it first; Redis and
memory have nothing to migrate.`,
		Example: `  dibs migrate --store postgres://owner@db.internal/app
  dibs migrate --store 'postgres://owner@db.internal/app?schema=dibs'
  dibs migrate --store postgres:///app --print > dibs.sql`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			if printed {
				return p.printMigrations()
			}
			return p.applyMigrations(cmd.Context())
		}),
	}
	cmd.Flags().BoolVar(&printed, "print", false, "print the SQL and connect to nothing")
	p.storeFlags(cmd.Flags())
	return cmd
}

func (p *program) applyMigrations(ctx context.Context) error {
	did, err := stores.Migrate(ctx, p.storeOf())
	if err == nil {
		_, err = fmt.Fprintln(p.env.Stdout, did)
	}
	return err
}

func (p *program) printMigrations() error {
	sql, err := stores.Migrations(p.storeOf())
	if err == nil {
		_, err = fmt.Fprint(p.env.Stdout, sql)
	}
	return err
}

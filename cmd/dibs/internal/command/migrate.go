package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) migrate() *cobra.Command {
	var printed bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create the store's tables",
		Long: `Creates the tables of a store in a SQL database, if they are missing, and prints
what it did. Several hosts may do it at once. The user needs the right to create
tables, which the proxy's user does not need.

No other command creates tables there: in a database that is not the one of the
other processes, nothing would keep two of them apart.

--print prints the SQL instead, and connects to nothing. A SQLite file is
created by the first program that uses it. Redis and memory have no tables.`,
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
	p.storeFlag(cmd.Flags())
	return cmd
}

func (p *program) applyMigrations(ctx context.Context) error {
	url, err := p.storeOf()
	if err != nil {
		return err
	}
	did, err := anystore.Migrate(ctx, url)
	if err == nil {
		_, err = fmt.Fprintln(p.env.Stdout, did)
	}
	return err
}

func (p *program) printMigrations() error {
	url, err := p.storeOf()
	if err != nil {
		return err
	}
	sql, err := anystore.Migrations(url)
	if err == nil {
		_, err = fmt.Fprint(p.env.Stdout, sql)
	}
	return err
}

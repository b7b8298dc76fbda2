package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) config() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration file of dibs proxy",
		Long: `Checks the configuration file of "dibs proxy". docs/reference/proxy.md
describes the file and its fields.`,
		Example: `  dibs config check dibs.yaml`,
		Args:    commandsOnly,
		RunE: p.run(func(*cobra.Command, []string) error {
			return usagef("say what to do with the file, as in dibs config check dibs.yaml")
		}),
	}
	cmd.AddCommand(p.configCheck())
	return cmd
}

func (p *program) configCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Find the faults of a configuration file",
		Long: `Checks a configuration file as "dibs proxy --config FILE" does when it starts.
Prints a line for each fault, at most 100, with the line and the column in the
file, which can be at most 256 KiB:

  dibs.yaml:3:1: unknown field "leese"; did you mean "lease"?

Checks the environment variables of the proxy too, but not its flags. Exits with
64 if there is a fault. Connects to nothing.`,
		Example: `  dibs config check dibs.yaml
  dibs config check /etc/dibs/proxy.yaml && systemctl reload dibs-proxy`,
		Args: cobra.ArbitraryArgs,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("name one configuration file, as in dibs config check dibs.yaml")
			}
			if _, err := p.load(args[0], cmd.Flags()); err != nil {
				// A line begins with its place in the file, so that editors find it.
				fmt.Fprintln(p.env.Stderr, strings.TrimPrefix(err.Error(), "--config: "))
				return exitf(codeUsage, "")
			}
			_, err := fmt.Fprintf(p.env.Stdout, "%s: no faults\n", args[0])
			return err
		}),
	}
}

// load returns the configuration of a proxy, from a file, unless "", from the environment and
// from flags.
func (p *program) load(file string, flags *pflag.FlagSet) (*proxy.Config, error) {
	if err := p.readStore(); err != nil {
		return nil, err
	}
	getenv := func(name string) string {
		if name == proxy.Variable("store") {
			return p.storeOfEnv
		}
		return p.env.Getenv(name)
	}
	c, err := (&proxy.Source{File: file, Flags: flags, Getenv: getenv, Environ: p.env.Environ, CheckStore: anystore.CheckURL}).Load()
	if err != nil {
		return nil, usagef("%v", err)
	}
	return c, nil
}

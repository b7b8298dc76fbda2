package command

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/internal/stores"
)

// root returns the command line.
func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "dibs",
		Short: "Call dibs on a key: run once, answer twice",
		Long: `dibs makes sure that what was asked for twice is done once.

Put "dibs proxy" in front of an HTTP service, in whatever language it is
written, and a request that is retried with the same Idempotency-Key runs once:
every retry gets the answer of the first. Put "dibs run" in front of a command,
and it runs on one host at a time. The keys are kept in a store that all of them
share.`,
		Example: `  dibs demo
  dibs proxy --listen :8080 --upstream http://127.0.0.1:3000
  dibs run --skip --once-per 20h backup -- ./backup.sh
  dibs ls`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n") // as the command says it
	root.AddCommand(p.proxy(), p.hold(), p.race(), p.list(), p.show(), p.release(), p.settle(), p.forget(), p.prune(),
		p.migrate(), p.doctor(), p.torture(), p.conform(), p.demo(), p.version())
	root.InitDefaultHelpCmd()
	root.AddCommand(p.man())
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Example = "  dibs help run"
		explain := help.Run
		help.Run, help.RunE = nil, func(cmd *cobra.Command, args []string) error {
			if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
				return usagef("there is no command %q", strings.Join(args, " "))
			}
			explain(cmd, args)
			return nil
		}
	}
	return root
}

func (p *program) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  "Prints the version of dibs and of the Go that built it.",
		Args:  flagsOnly,
		RunE: p.run(func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(p.env.Stdout, "dibs %s\n", version())
			return err
		}),
	}
}

// flagsOnly refuses arguments, which cobra.NoArgs would call unknown commands.
func flagsOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%q is not a flag, and %s takes nothing else", args[0], cmd.CommandPath())
	}
	return nil
}

// version describes this build.
func version() string {
	return fmt.Sprintf("%s %s %s/%s", release(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// release is the version that this is a build of, or "devel".
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// storeFlags adds the flags that say where the keys are.
func (p *program) storeFlags(fs *pflag.FlagSet) {
	fs.StringVar(&p.storeURL, "store", "", "the `URL` of the store: "+strings.Join(stores.Forms(), " or ")+" (default $DIBS_STORE, or "+stores.Default+")")
	fs.StringVar(&p.namespace, "namespace", "", "the `NAME` that keeps these keys apart from others in the store")
}

// storeOf returns the URL of the store: a flag's, the environment's, or the
// default.
func (p *program) storeOf() string {
	return cmp.Or(p.storeURL, p.env.Getenv("DIBS_STORE"), stores.Default)
}

// askLimit bounds what an operator's command asks of a store.
const askLimit = 10 * time.Second

// look opens the store to look into it.
func (p *program) look(ctx context.Context) (*stores.Store, error) {
	return stores.OpenExisting(ctx, p.storeOf())
}

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// root returns the command line.
func (p *program) root() *cobra.Command {
	var showVersion bool
	root := &cobra.Command{
		Use:   "dibs",
		Short: "Call dibs on a key: run once, answer twice",
		Long: `dibs makes duplicate requests and jobs run once.

Put "dibs proxy" in front of an HTTP service in any language. Then a request
that is retried with the same Idempotency-Key runs once, and every retry gets
the first answer. Put "dibs run" in front of a command, and it runs on one host
at a time. The keys are in a store that all processes share.`,
		Example: `  dibs demo
  dibs proxy --store redis://cache.internal --listen :8080 --upstream http://127.0.0.1:3000
  dibs run --skip --once-per 20h backup -- ./backup.sh
  dibs ls`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          commandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				return p.printVersion()
			}
			return cmd.Help()
		},
	}
	// Not cobra's Version: its text is a template, which makes the linker keep every method.
	root.Flags().BoolVarP(&showVersion, "version", "v", false, "print the version")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(misused)
	root.SetUsageFunc(usage)
	addGroup(root, "Serve requests", p.proxy(), p.serveAPI(), p.config(), p.healthcheck())
	addGroup(root, "Run commands", p.unixCommands()...)
	addGroup(root, "Look and repair", p.list(), p.show(), p.release(), p.resolve(), p.forget(), p.prune(), p.migrate(), p.doctor())
	addGroup(root, "Prove", p.demo())
	root.AddCommand(p.version(), p.man(), helpOnStores())
	root.InitDefaultHelpCmd()
	initCompletion(root)
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Example = "  dibs help run\n  dibs help store"
		explain := help.Run
		help.Run, help.RunE = nil, func(cmd *cobra.Command, args []string) error {
			if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
				return unknownCommand(root, args)
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
		RunE:  p.run(func(*cobra.Command, []string) error { return p.printVersion() }),
	}
}

func (p *program) printVersion() error {
	_, err := fmt.Fprintf(p.env.Stdout, "dibs %s\n", version())
	return err
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

// storeFlags adds the flags of a store and of keys in it.
func (p *program) storeFlags(fs *pflag.FlagSet) {
	p.storeFlag(fs)
	fs.StringVar(&p.namespace, "namespace", "", "the `NAME` that keeps these keys apart from others in the store")
}

// storeFlag adds the flag of a store.
func (p *program) storeFlag(fs *pflag.FlagSet) {
	fs.VarP((*storeURL)(&p.storeURL), "store", "", "the `URL` of the store: see dibs help store (default $DIBS_STORE, or the text of the file $DIBS_STORE_FILE)")
}

// storeURL is the flag --store. An empty URL is refused, because it is mostly a variable of
// the shell that is not set, and the store of DIBS_STORE would be another one.
type storeURL string

func (u *storeURL) Set(text string) error {
	if text == "" {
		return errors.New("it is empty")
	}
	*u = storeURL(text)
	return nil
}

func (u *storeURL) String() string { return string(*u) }
func (u *storeURL) Type() string   { return "string" }

// readStore finds out which store the environment names, unless there is a flag.
func (p *program) readStore() (err error) {
	if p.namedStore() == "" {
		if p.storeOfEnv, err = anystore.FromEnvironment(p.env.Getenv); err != nil {
			return usagef("%v", err)
		}
	}
	return nil
}

// namedStore returns the URL of the store from the flag or from the environment, or "".
func (p *program) namedStore() string { return cmp.Or(p.storeURL, p.storeOfEnv) }

// storeOf is namedStore that refuses "". There is no default, because a default that depends
// on the folder or on the user gives the same job several stores, and it runs several times.
func (p *program) storeOf() (string, error) {
	if err := p.readStore(); err != nil { // again, because completion asks first here
		return "", err
	}
	url := p.namedStore()
	if url == "" {
		return "", usagef("no store is named; set --store or DIBS_STORE to the store that all processes with these keys share: sqlite:/FOLDER/dibs.db on one host, or a server such as redis://HOST")
	}
	return url, nil
}

// askLimit bounds each question of an operator's command to the store.
const askLimit = 10 * time.Second

// ask puts a question to the store.
func ask[T any](ctx context.Context, op string, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	answer, err := question(ctx)
	if err != nil && !errors.Is(err, dibs.ErrFull) {
		err = &dibs.StoreError{Op: op, Err: err}
	}
	return answer, err
}

// operate opens the store and calls fn with it.
func (p *program) operate(ctx context.Context, fn func(*anystore.Store, store.Inspector) error) error {
	return p.with(ctx, anystore.ToInspect, fn)
}

// look is operate for commands that only list.
func (p *program) look(ctx context.Context, fn func(*anystore.Store, store.Inspector) error) error {
	return p.with(ctx, anystore.ToList, fn)
}

func (p *program) with(ctx context.Context, mode anystore.Mode, fn func(*anystore.Store, store.Inspector) error) error {
	url, err := p.storeOf()
	if err != nil {
		return err
	}
	store, err := anystore.Open(ctx, url, mode)
	if err != nil {
		return err
	}
	defer store.Close()
	in, err := store.Inspector()
	if err != nil {
		return err
	}
	return fn(store, in)
}

package command

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// torturer is the program that `dibs torture` runs.
const torturer = "dibs-torture"

// torture returns the command that runs dibs-torture, as git finds its subcommands. A
// production binary contains nothing that breaks a store.
func (p *program) torture() *cobra.Command {
	return &cobra.Command{
		Use:   "torture [flags]",
		Short: "Break a store on purpose, and check what it keeps of its promises",
		Long: `Runs the program dibs-torture, which must be on PATH: see "dibs torture --help".
It is a program of its own, because a production binary of dibs contains nothing
that breaks a store. Install it with

  go install github.com/dibs-go/dibs/cmd/dibs-torture@` + releaseOf(),
		Example:            `  dibs torture --store postgres://app@db.internal/app --duration 5m`,
		DisableFlagParsing: true,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			path, err := exec.LookPath(torturer)
			if err != nil && (slices.Contains(args, "--help") || slices.Contains(args, "-h")) {
				return cmd.Help()
			}
			if err != nil {
				return &failure{is: errNotInstalled, text: fmt.Sprintf(
					"the program %s is not on PATH; install it with: go install github.com/dibs-go/dibs/cmd/%s@%s", torturer, torturer, releaseOf())}
			}
			if err := syscall.Exec(path, append([]string{torturer}, args...), os.Environ()); err != nil {
				return &failure{is: errNotInstalled, text: fmt.Sprintf("%s cannot be run: %v", path, err)}
			}
			return nil
		}),
	}
}

// releaseOf returns the version of this build for go install.
func releaseOf() string {
	if v, _, _ := strings.Cut(version(), " "); v != "devel" {
		return v
	}
	return "latest"
}

package command

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"

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

  ` + installTorturer(release()),
		Example:            `  dibs torture --store postgres://app@db.internal/app --duration 5m`,
		DisableFlagParsing: true,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			path, err := exec.LookPath(torturer)
			if (err != nil || p.env.Exec == nil) && (slices.Contains(args, "--help") || slices.Contains(args, "-h")) {
				return cmd.Help()
			}
			if err != nil {
				return &failure{is: errNotInstalled, text: fmt.Sprintf(
					"the program %s is not on PATH; install it with: %s", torturer, installTorturer(release()))}
			}
			if p.env.Exec == nil {
				return &failure{is: errNotInstalled, text: "this process may not be replaced by " + path}
			}
			if err := p.env.Exec(path, append([]string{torturer}, args...), os.Environ()); err != nil {
				return &failure{is: errNotInstalled, text: fmt.Sprintf("%s cannot be run: %v", path, err)}
			}
			return nil
		}),
	}
}

// tagged matches the version of a release. The build of a clone has none, or that of a commit.
var tagged = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// installTorturer returns the command that installs the dibs-torture of this build.
func installTorturer(release string) string {
	if tagged.MatchString(release) {
		return "go install github.com/dibs-go/dibs/cmd/" + torturer + "@" + release
	}
	return "go install ./cmd/" + torturer + " # in the clone"
}

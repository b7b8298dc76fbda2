package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// man returns the hidden command that prints the manual page, for releases and packages.
func (p *program) man() *cobra.Command {
	return &cobra.Command{
		Use:     "man",
		Short:   "Print the manual page",
		Long:    "Prints the manual page dibs(1), made from the texts of --help, for man to show.",
		Example: "  dibs man > dibs.1 && man ./dibs.1",
		Hidden:  true,
		Args:    flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(p.env.Stdout, manual(cmd.Root()))
			return err
		}),
	}
}

// manual is the page of a command and its visible subcommands in roff. Texts keep their
// lines, because some are indented examples.
func manual(root *cobra.Command) string {
	var page strings.Builder
	fmt.Fprintf(&page, ".TH %s 1 \"\" %q\n.SH NAME\n%s \\- %s\n", strings.ToUpper(root.Name()), root.Name()+" "+release(), root.Name(), roff(root.Short))
	page.WriteString(".SH SYNOPSIS\n" + roff(root.Name()) + " COMMAND [flags]\n.SH DESCRIPTION\n")
	describe(&page, root)
	page.WriteString(".SH COMMANDS\n")
	for _, c := range root.Commands() {
		if !c.IsAvailableCommand() && !c.IsAdditionalHelpTopicCommand() {
			continue
		}
		fmt.Fprintf(&page, ".SS %s\n%s.\n", roff(c.UseLine()), roff(c.Short))
		describe(&page, c)
	}
	return page.String()
}

// describe writes what --help says of a command.
func describe(page *strings.Builder, c *cobra.Command) {
	c.InitDefaultHelpFlag()
	for _, text := range []string{c.Long, c.LocalFlags().FlagUsagesWrapped(76), c.Example} {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(page, ".PP\n.nf\n%s\n.fi\n", roff(text))
		}
	}
}

// roff escapes a text: no character is a command, and a hyphen can be copied as one.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

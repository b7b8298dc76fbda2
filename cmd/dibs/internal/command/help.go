package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/stores/anystore"
)

// helpWidth is how many columns a line of help has at most.
const helpWidth = 100

// addGroup adds commands that help shows under a title.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}

// helpOnStores returns the topic that describes the URLs of stores.
func helpOnStores() *cobra.Command {
	var b strings.Builder
	b.WriteString(`The store keeps the keys. All processes with the same keys name the same one, by
--store URL or by the environment variable DIBS_STORE. A flag overrides the
variable, but every user of a host can see it: put a password into the variable,
or the whole URL into a file, and the path of the file into DIBS_STORE_FILE.

`)
	short := strings.NewReplacer(" (also", "\n      (also", "; ", ";\n       ")
	for _, form := range anystore.Forms() {
		b.WriteString("  " + short.Replace(form) + "\n")
	}
	b.WriteString(`
memory: is for one process. sqlite: is for all processes of one host. The others
are for several hosts. README.md of each store has the parameters of its URL.`)
	return &cobra.Command{Use: "store", Short: "The URLs of stores", Long: b.String()}
}

// usage prints what follows the text of a command in its help. It is not the library's, whose lines
// have no limit, and no template, which would make the linker keep every method.
func usage(c *cobra.Command) error {
	var b strings.Builder
	section := func(title, text string) {
		if text = strings.TrimRight(text, "\n"); text != "" {
			fmt.Fprintf(&b, "\n%s:\n%s\n", title, text)
		}
	}
	var lines []string
	if c.Runnable() {
		lines = append(lines, "  "+c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		lines = append(lines, "  "+c.CommandPath()+" [command]")
	}
	section("Usage", strings.Join(lines, "\n"))
	section("Examples", c.Example)
	for _, g := range c.Groups() {
		section(g.Title, listed(c, func(sub *cobra.Command) bool { return sub.GroupID == g.ID }))
	}
	other := "Commands"
	if len(c.Groups()) > 0 {
		other = "Other commands"
	}
	section(other, listed(c, func(sub *cobra.Command) bool { return sub.GroupID == "" }))
	writeFlags(section, c.LocalFlags())
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\"%s COMMAND --help\" says more about a command.\n", c.CommandPath())
	}
	_, err := io.WriteString(c.OutOrStderr(), strings.TrimPrefix(b.String(), "\n"))
	return err
}

// listed returns a line for each command and topic below c that is chosen.
func listed(c *cobra.Command, chosen func(*cobra.Command) bool) string {
	var b strings.Builder
	for _, sub := range c.Commands() {
		shown := sub.IsAvailableCommand() || sub.Name() == "help"
		name := sub.Name()
		if sub.IsAdditionalHelpTopicCommand() {
			shown, name = true, "help "+name
		}
		if shown && chosen(sub) {
			fmt.Fprintf(&b, "  %-*s %s\n", sub.NamePadding(), name, sub.Short)
		}
	}
	return b.String()
}

// writeFlags writes the flags of a command: those of a proxy's settings under the titles that
// docs/reference/proxy.md has, and the others at the end.
func writeFlags(section func(title, text string), all *pflag.FlagSet) {
	of := func(title string) string {
		fs := pflag.NewFlagSet(title, pflag.ContinueOnError)
		fs.SortFlags = title == ""
		all.SortFlags = fs.SortFlags
		all.VisitAll(func(f *pflag.Flag) {
			if proxy.Section(f) == title {
				fs.AddFlag(f)
			}
		})
		return fs.FlagUsagesWrapped(helpWidth)
	}
	texts := make([]string, len(proxy.Sections))
	for i, title := range proxy.Sections {
		texts[i] = of(title)
	}
	rest := "Flags"
	if slices.ContainsFunc(texts, func(s string) bool { return s != "" }) {
		rest = "Other flags"
	}
	for i, title := range proxy.Sections {
		section(title, texts[i])
	}
	section(rest, of(""))
}

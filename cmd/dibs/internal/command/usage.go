package command

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/internal/suggest"
)

// misused returns the error for flags that the library refused: which flag it is, and what to
// write instead.
func misused(cmd *cobra.Command, err error) error {
	// A command that does not exist is the mistake, and not its flags.
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return unknownCommand(cmd, args)
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := e.GetSpecifiedName()
		if short := e.GetSpecifiedShortnames(); short != "" {
			name = short // because -wait is meant to be --wait
		}
		if variable := proxy.Variable(name); cmd.Name() == "proxy" && variable != "" {
			return usagef("--%s is not a flag; set the field %s in the file of --config, or %s in the environment", name, name, variable)
		}
		if meant := valueOf(cmd, name); meant != "" {
			return usagef("%v; did you mean %s?", err, meant)
		}
		if meant := suggest.Similar(name, flagsOf(cmd), nil); meant != "" {
			return usagef("%v; did you mean --%s?", err, meant)
		}
		return usagef("%v%s", err, insteadOf(cmd, name))
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return usagef("--%s: %s", e.GetFlag().Name, wrongValue(e))
	}
	return err
}

// insteadOf says what helps a user of a flag that the command does not have, and that is not a
// misspelt one.
func insteadOf(cmd *cobra.Command, flag string) (text string) {
	switch {
	case flag == "namespace" && cmd.Flag("store") != nil:
		return fmt.Sprintf("; remove it, because %s is not about one namespace", cmd.CommandPath())
	case proxy.Variable(flag) != "":
		text = "; dibs proxy has that setting"
	}
	if _, arguments, ok := strings.Cut(cmd.Use, " "); ok {
		text += fmt.Sprintf("; the usage is %s %s", cmd.CommandPath(), arguments)
	}
	return text
}

// wrongValue says what is wrong with the value of a flag.
func wrongValue(e *pflag.InvalidValueError) string {
	n, ok := errors.AsType[*strconv.NumError](e.Unwrap())
	switch {
	case !ok:
		return e.Unwrap().Error()
	case n.Func == "ParseBool":
		return fmt.Sprintf("%q is neither true nor false", e.GetValue())
	case errors.Is(n, strconv.ErrRange):
		return fmt.Sprintf("%s is out of range", e.GetValue())
	}
	return fmt.Sprintf("%q is not a whole number", e.GetValue())
}

// valueOf returns the flag that the word is a value of, with the word; "" if there is none, or several.
func valueOf(cmd *cobra.Command, word string) (meant string) {
	for _, name := range flagsOf(cmd) {
		values, ok := cmd.GetFlagCompletionFunc(name)
		if !ok {
			continue
		}
		if words, _ := values(cmd, nil, ""); slices.Contains(words, word) {
			if meant != "" {
				return ""
			}
			meant = "--" + name + " " + word
		}
	}
	return meant
}

// flagsOf returns the names of a command's flags.
func flagsOf(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// unknownCommand is the error for arguments that name no command below this one.
func unknownCommand(cmd *cobra.Command, args []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	text := fmt.Sprintf("there is no command %q", strings.Join(args, " "))
	if meant := suggest.Similar(args[0], names, nil); meant != "" {
		return usagef("%s; did you mean %q?", text, strings.TrimPrefix(cmd.CommandPath()+" "+meant, cmd.Root().Name()+" "))
	}
	return usagef("%s; %s --help lists them", text, cmd.CommandPath())
}

// commandsOnly refuses arguments of a command that is only there for those below it.
func commandsOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args)
	}
	return nil
}

// flagsOnly refuses arguments.
func flagsOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		text := fmt.Sprintf("%q is not a flag, and %s accepts only flags", args[0], cmd.CommandPath())
		if meant := valueOf(cmd, args[0]); meant != "" {
			text += "; did you mean " + meant + "?"
		}
		return usagef("%s", text)
	}
	return nil
}

// oneKey refuses several arguments.
func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("name one key; a key with spaces needs quotes, as in %s '%s'", cmd.CommandPath(), quote(strings.Join(args, " ")))
	}
	return nil
}

// initCompletion makes the library's command for completion refuse shells that it does not know.
func initCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	cmd, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		var shells []string
		for _, c := range cmd.Commands() {
			shells = append(shells, c.Name())
		}
		text := "name the shell"
		if len(args) > 0 {
			text = fmt.Sprintf("there is no completion for %q", strings.Join(args, " "))
		}
		return usagef("%s: dibs completion writes it for %s", text, strings.Join(shells, ", "))
	}
}

// durationVar adds a flag for a duration.
func durationVar(fs *pflag.FlagSet, to *time.Duration, name string, usual time.Duration, usage string) {
	*to = usual
	fs.Var((*quantity.DurationFlag)(to), name, usage)
}

// sizeVar adds a flag for a number of bytes.
func sizeVar(fs *pflag.FlagSet, to *int64, name string, usual int64, usage string) {
	*to = usual
	fs.Var((*quantity.SizeFlag)(to), name, usage)
}

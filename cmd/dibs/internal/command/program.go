// Package command is the command line: its arguments, its messages and its exit codes.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/terminal"
	"github.com/dibs-go/dibs/stores/anystore"
)

// Env is what the program knows of the system.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Environ        []string // as os.Environ returns it
}

// Exit codes, after sysexits.h.
const (
	codeOK       = 0
	codeFailed   = 1
	codeUsage    = 64
	codeUnusable = 69
	codeLost     = 70
	codeBusy     = 75
)

var (
	errUsage    = errors.New("usage")
	errAbsent   = errors.New("absent")
	errDeclined = errors.New("declined")
)

// codes is the table of errors and exit codes. The first row that matches counts; an error
// without a row is codeFailed.
var codes = []struct {
	err  error
	code int
}{
	{errUsage, codeUsage},
	{anystore.ErrURL, codeUsage},
	{anystore.ErrUnusable, codeUnusable},
	{dibs.ErrStore, codeUnusable},
	{errAbsent, codeFailed},
	{errDeclined, codeFailed},
}

// InterruptedError is the cause of a context that a signal cancels.
type InterruptedError struct {
	Signal os.Signal
}

func (i *InterruptedError) Error() string { return "ended by a signal: " + i.Signal.String() }

// code is 128+n for signal n, as shells have it.
func (i *InterruptedError) code() int {
	if s, ok := i.Signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return codeFailed
}

// failure is an error whose text is the whole message.
type failure struct {
	is   error // has the exit code
	text string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.is }

func usagef(format string, args ...any) error {
	return &failure{is: errUsage, text: fmt.Sprintf(format, args...)}
}

func absentf(format string, args ...any) error {
	return &failure{is: errAbsent, text: fmt.Sprintf(format, args...)}
}

// exitError ends the program with a code, and without a message if the text is "".
type exitError struct {
	code int
	text string
}

func exitf(code int, format string, args ...any) error {
	return &exitError{code: code, text: fmt.Sprintf(format, args...)}
}

func (e *exitError) Error() string { return e.text }

// Child runs the work of a child process that another process of the program started, and
// does not return then. Call it first in main.
func Child() {
	watchdog()
	demo.Add()
}

// Run runs the program with the arguments after its name and returns its exit code. It
// returns when the work is done or ctx is cancelled.
func Run(ctx context.Context, args []string, env Env) int {
	p := &program{env: env}
	root := p.root()
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return codeOK
	}
	code, err := p.codeOf(ctx, err)
	if err.Error() == "" {
		return code
	}
	fmt.Fprintf(env.Stderr, "%s: %s\n", cmd.CommandPath(), strings.TrimPrefix(err.Error(), "dibs: "))
	if code == codeUsage {
		fmt.Fprintf(env.Stderr, "Try '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// codeOf returns the exit code of an error, and the error to report.
func (p *program) codeOf(ctx context.Context, err error) (int, error) {
	code := codeFailed
	if !p.running {
		code = codeUsage // the library refused a flag or an argument
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			code = c.code
			break
		}
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code, err
	}
	if i, ok := errors.AsType[*InterruptedError](context.Cause(ctx)); ok {
		return i.code(), i // because the signal caused every other error
	}
	return code, err
}

// program is one run of the program.
type program struct {
	env     Env
	running bool // the library accepted the arguments

	storeURL   string // of the flag
	storeOfEnv string
	namespace  string
}

// run returns the RunE of a command. It notes that the library accepted the arguments.
func (p *program) run(fn func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p.running = true
		if cmd.Flags().Lookup("store") != nil {
			if err := p.readStore(); err != nil {
				return err
			}
		}
		return fn(cmd, args)
	}
}

// confirm asks the question, unless yes answers it.
func (p *program) confirm(question string, yes bool) error {
	if yes {
		return nil
	}
	if !terminal.Is(p.env.Stdin) {
		return &failure{is: errDeclined, text: "declined: the question cannot be asked, because stdin is not a terminal; answer it with --yes"}
	}
	fmt.Fprintf(p.env.Stderr, "%s [y/N] ", question)
	var answer string
	_, _ = fmt.Fscanln(p.env.Stdin, &answer) // the end of the input is a no
	if answer = strings.ToLower(answer); answer == "y" || answer == "yes" {
		return nil
	}
	return &failure{is: errDeclined, text: "declined; nothing was changed"}
}

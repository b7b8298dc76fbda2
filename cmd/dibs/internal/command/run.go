// Package command is the command line: what dibs is told, what it prints, and
// with which code it ends.
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
	"github.com/dibs-go/dibs/cmd/dibs/internal/process"
	"github.com/dibs-go/dibs/cmd/dibs/internal/race"
	"github.com/dibs-go/dibs/conform"
	"github.com/dibs-go/dibs/internal/stores"
)

// Env is the world that a run sees.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// Codes with which the program ends, after sysexits.h.
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
	// errNotInstalled says that another program is missing.
	errNotInstalled = errors.New("not installed")
)

// codes is how errors become exit codes; the first that matches counts, and
// what matches none is codeFailed.
var codes = []struct {
	err  error
	code int
}{
	{errUsage, codeUsage},
	{stores.ErrURL, codeUsage},
	{stores.ErrUnusable, codeUnusable},
	{dibs.ErrStore, codeUnusable},
	{conform.ErrTarget, codeUnusable},
	{conform.ErrOrigin, codeUnusable},
	{errNotInstalled, codeUnusable},
	{errAbsent, codeFailed},
	{errDeclined, codeFailed},
}

// InterruptedError is the cause with which the context of a run ends when a signal
// came.
type InterruptedError struct {
	Signal os.Signal
}

func (i *InterruptedError) Error() string { return "ended by a signal: " + i.Signal.String() }

// code is what shells make of it.
func (i *InterruptedError) code() int {
	if s, ok := i.Signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return codeFailed
}

// failure is an error for people: a text, and what it is.
type failure struct {
	is   error
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

// Child makes this process what another run of the program started it as, a
// watchdog or a worker of a race, and then does not return. It comes first in main.
func Child() {
	process.Watchdog()
	race.Worker()
}

// Run runs the program with the arguments that follow its name, until it is
// done or ctx ends, and returns its exit code.
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
		return code // the code says it all
	}
	fmt.Fprintf(env.Stderr, "%s: %s\n", cmd.CommandPath(), strings.TrimPrefix(err.Error(), "dibs: "))
	if code == codeUsage {
		fmt.Fprintf(env.Stderr, "Try '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// codeOf returns the code with which the program ends because of an error, and what is to
// be said of it.
func (p *program) codeOf(ctx context.Context, err error) (int, error) {
	code := codeFailed
	if !p.running {
		// What the library itself found fault with: a flag, an argument.
		code = codeUsage
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			code = c.code
			break
		}
	}
	exit, isExit := errors.AsType[*exitError](err)
	start, isStart := errors.AsType[*process.StartError](err)
	i, interrupted := errors.AsType[*InterruptedError](context.Cause(ctx))
	switch {
	case isExit:
		code = exit.code
	case isStart:
		code = start.Code
	case interrupted:
		// Whatever failed, failed because of it.
		return i.code(), i
	}
	return code, err
}

// program is one run.
type program struct {
	env     Env
	running bool // the arguments were fine

	storeURL  string
	namespace string
}

// run makes a command's function of one that knows the arguments were fine.
func (p *program) run(fn func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p.running = true
		return fn(cmd, args)
	}
}

// interactive reports whether somebody sits at the other end of stdin.
func (p *program) interactive() bool {
	f, ok := p.env.Stdin.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// confirm asks a question, unless the answer was given beforehand.
func (p *program) confirm(question string, yes bool) error {
	if yes {
		return nil
	}
	if !p.interactive() {
		return &failure{is: errDeclined, text: "declined: there is nobody to ask, because stdin is not a terminal; say --yes"}
	}
	fmt.Fprintf(p.env.Stderr, "%s [y/N] ", question)
	var answer string
	_, _ = fmt.Fscanln(p.env.Stdin, &answer) // an end of input is a no
	if answer = strings.ToLower(answer); answer == "y" || answer == "yes" {
		return nil
	}
	return &failure{is: errDeclined, text: "declined; nothing was changed"}
}

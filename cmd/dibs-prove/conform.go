package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/progress"
	"github.com/dibs-go/dibs/internal/quantity"
)

// conformUsage is the help before the list of flags.
//
//go:embed conform.txt
var conformUsage string

// conformity has the flags of dibs-prove conform.
type conformity struct {
	options conform.Options
	restart string
	origin  string
	json    bool
	quiet   bool
	list    bool

	flags          *flag.FlagSet
	stdout, stderr io.Writer
	line           *progress.Line
}

// usageError is about a flag. Its text begins with the flag's name.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// runConform runs the kit with the arguments after its name and returns the exit code.
func runConform(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	c := conformity{stdout: stdout, stderr: stderr, line: progress.New(stderr, getenv)}
	conforms := false
	err := c.parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, conformUsage)
		c.flags.SetOutput(stdout)
		c.flags.PrintDefaults()
		return codeOK
	case err != nil:
	case c.list:
		err, conforms = conform.WriteList(stdout), true
	default:
		conforms, err = c.check(ctx)
	}
	if err != nil {
		fmt.Fprintf(stderr, "dibs-prove conform: %s\n", strings.TrimPrefix(err.Error(), "conform: "))
	}
	interrupted, ended := errors.AsType[*interruptedError](context.Cause(ctx))
	_, taken := errors.AsType[*net.OpError](err) // the origin cannot listen
	_, wrong := errors.AsType[*usageError](err)
	switch {
	case wrong:
		fmt.Fprintln(stderr, "Try 'dibs-prove conform --help'.")
		return codeUsage
	case ended:
		return interrupted.code()
	case taken || errors.Is(err, conform.ErrTarget) || errors.Is(err, conform.ErrOrigin) || errors.Is(err, conform.ErrService):
		return codeUnusable
	case err != nil || !conforms:
		return codeFailed
	}
	return codeOK
}

// list adds the elements of a flag with commas to a slice.
func list[T ~string](to *[]T) func(string) error {
	return func(text string) error {
		for element := range strings.SplitSeq(text, ",") {
			*to = append(*to, T(strings.TrimSpace(element)))
		}
		return nil
	}
}

// parse reads the flags.
func (c *conformity) parse(args []string) error {
	f, o := flag.NewFlagSet("dibs-prove conform", flag.ContinueOnError), &c.options
	c.flags = f
	f.SetOutput(io.Discard)
	o.Timeout = conform.DefaultTimeout
	f.StringVar(&o.Target, "target", "", "the `URL` of the implementation")
	f.StringVar(&c.origin, "origin", "127.0.0.1:3000", "the `ADDR` on which the kit answers the requests that the target forwards")
	f.BoolVar(&o.Service, "service", false, "the target answers by itself, and its URL is that of the requests: judge only what the answers show")
	f.StringVar(&o.Body, "body", "", "with --service: the `JSON` of a request that the service accepts (default {\"amount\":1200})")
	f.StringVar(&o.OtherBody, "other-body", "", "with --service: the `JSON` of another request that it accepts (default {\"amount\":1300})")
	f.StringVar((*string)(&o.Profile), "profile", string(conform.Draft), "`WHAT` the target claims: draft, dibs, stripe, acp (Agentic Commerce Protocol) or ucp (Universal Commerce Protocol)")
	f.BoolVar(&o.RequireKey, "require-key", false, "the target refuses requests without a key")
	f.BoolVar(&o.StrictKey, "strict-key", false, "the target refuses keys without quotes")
	f.BoolVar(&o.Keeps5xx, "keeps-5xx", false, "the target stores answers of 500 and above")
	f.IntVar(&o.ConflictStatus, "conflict-status", http.StatusConflict, "the `STATUS` with which the target refuses a duplicate of a running request")
	f.IntVar(&o.MismatchStatus, "mismatch-status", 0, "the `STATUS` with which the target refuses another request under a used key (default what the profile says)")
	f.Func("skip", "skip these cases, a `LIST`", list(&o.Skip))
	f.Func("only", "run only these cases, a `LIST`", list(&o.Only))
	f.Func("header", "add the field `NAME: VALUE` to every request; can be repeated", c.addHeader)
	f.StringVar(&c.restart, "restart", "", "a shell `COMMAND` that restarts the target and ends when the target serves")
	f.Var((*quantity.DurationFlag)(&o.Timeout), "timeout", "how long a case may take")
	f.IntVar(&o.Parallel, "parallel", conform.DefaultParallel, "how many cases run at once")
	f.Func("level", "run only the cases of these levels, a `LIST` of must, should, practice and extension", list(&o.Levels))
	f.BoolVar(&c.quiet, "quiet", false, "print only the cases that failed, and the summary")
	f.BoolVar(&c.json, "json", false, "print one JSON object a line: the cases, then the summary")
	f.BoolVar(&c.list, "list", false, "print the cases with their sources, in Markdown, and check nothing")
	err := f.Parse(args)
	named := false
	f.Visit(func(f *flag.Flag) { named = named || f.Name == "origin" })
	switch {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return &usageError{err.Error()}
	case f.NArg() > 0:
		return &usageError{fmt.Sprintf("%q is not a flag, and dibs-prove conform takes nothing else", f.Arg(0))}
	case c.list:
		return nil
	case o.Target == "":
		return &usageError{"--target: name the implementation by its URL, as in --target http://127.0.0.1:8080"}
	case c.quiet && c.json:
		return &usageError{"--quiet: it cannot be used together with --json; remove one of them"}
	case named && o.Service:
		return &usageError{"--origin: it cannot be used together with --service, whose target answers by itself; remove one of them"}
	}
	return nil
}

// addHeader reads a value of --header.
func (c *conformity) addHeader(line string) error {
	name, value, ok := strings.Cut(line, ":")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return fmt.Errorf("header: %q is not of the form NAME: VALUE", line)
	}
	if c.options.Header == nil {
		c.options.Header = make(http.Header)
	}
	c.options.Header.Add(name, strings.TrimSpace(value))
	return nil
}

// check runs the kit, prints its report and reports whether the target conforms.
func (c *conformity) check(ctx context.Context) (conforms bool, err error) {
	if !c.options.Service {
		origin, err := conform.Listen(c.origin)
		if err != nil {
			return false, err
		}
		defer origin.Close()
		c.options.Origin = origin
	}
	if c.restart != "" {
		c.options.Restart = func(ctx context.Context) error { return restart(ctx, c.restart, c.stderr) }
	}
	c.options.Progress = func(done, all, failed int) {
		c.line.Show(fmt.Sprintf("%d of %d cases are done, %d failed", done, all, failed))
	}
	report, err := conform.Run(ctx, &c.options)
	c.line.Show("")
	if err != nil {
		return false, c.explain(err)
	}
	write := report.WriteText
	switch {
	case c.json:
		write = report.WriteJSON
	case c.quiet:
		write = report.WriteFailed
	}
	return report.Conforms(), write(c.stdout)
}

// explain adds to the kit's error what to do.
func (c *conformity) explain(err error) error {
	switch {
	case errors.Is(err, conform.ErrOrigin):
		return fmt.Errorf("%w; let it forward to http://%s, name the address to which it forwards with --origin, or check a service that answers by itself with --service", err, c.origin)
	case errors.Is(err, conform.ErrService):
		return fmt.Errorf("%w; name the URL of a POST in --target, what it accepts in --body and --other-body, and credentials in --header", err)
	case errors.Is(err, conform.ErrTarget):
		return err
	}
	// The error is about an option, whose flag has another name.
	text := strings.TrimPrefix(err.Error(), "conform: ")
	name, ok := strings.CutPrefix(text, "Options.")
	if !ok {
		return err
	}
	flag := strings.NewReplacer("ConflictStatus", "conflict-status", "MismatchStatus", "mismatch-status", "Target", "target", "Levels", "level", "Only", "only", "Skip", "skip",
		"Header", "header", "Profile", "profile", "Timeout", "timeout", "Parallel", "parallel", "OtherBody", "other-body", "Body", "body", "Service", "service").Replace(name)
	if strings.HasPrefix(name, "Only") || strings.HasPrefix(name, "Skip") {
		flag += "; dibs-prove conform --list has all cases"
	}
	return &usageError{flag}
}

// restartLimit bounds a restart of the target. restartPause bounds the wait for the output
// after the command has ended, because the target may have inherited it.
const (
	restartLimit = 30 * time.Second
	restartPause = 200 * time.Millisecond
)

// restart runs the command that restarts the target.
func restart(ctx context.Context, command string, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Stdout, cmd.Stderr = stderr, stderr
	cmd.WaitDelay = restartPause
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/conform"
)

// conformity is what "dibs conform" was told.
type conformity struct {
	options conform.Options
	profile string
	headers []string
	restart string
	origin  string
	json    bool
	list    bool
}

// errNonconforming is what the kit ends with when a case failed that must pass. It has
// been said.
var errNonconforming = &failure{is: errors.New("does not conform")}

func (p *program) conform() *cobra.Command {
	var c conformity
	cmd := &cobra.Command{
		Use:   "conform --target URL",
		Short: "Check an implementation of idempotent HTTP, ours or not",
		Long: `Sends requests to a server that makes HTTP idempotent, and looks at its answers
and at what it let through: more than a hundred cases from the IETF draft, the
RFCs and the practice of providers, each with its source. docs/conformance.md
lists them, and so does --list.

The target forwards what it lets through to the address of --origin, where the
kit answers.

Prints a line for each case, and below a failed one what was seen. A case that
the target was not said to do is skipped, never passed. Exit codes: 1 if a case
failed that must pass, 69 if nothing could be checked.`,
		Example: `  dibs conform --target http://127.0.0.1:8080 --origin 127.0.0.1:3000
  dibs conform --target http://127.0.0.1:8080 --profile dibs
  dibs conform --target https://api.example --header 'Authorization: Bearer …'`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			if c.list {
				return conform.WriteList(p.env.Stdout)
			}
			if err := c.read(); err != nil {
				return err
			}
			return p.check(cmd.Context(), &c)
		}),
	}
	f, o := cmd.Flags(), &c.options
	f.StringVar(&o.Target, "target", "", "the `URL` of the implementation")
	f.StringVar(&c.origin, "origin", "127.0.0.1:3000", "the `ADDR` on which the kit serves what the target lets through")
	f.StringVar(&c.profile, "profile", string(conform.Draft), "`WHAT` the target sets out to do: draft, dibs or stripe")
	f.BoolVar(&o.RequireKey, "require-key", false, "the target refuses requests without a key")
	f.BoolVar(&o.StrictKey, "strict-key", false, "the target refuses keys without quotes")
	f.BoolVar(&o.Keeps5xx, "keeps-5xx", false, "the target keeps answers of 500 and more")
	f.IntVar(&o.ConflictStatus, "conflict-status", http.StatusConflict, "the `STATUS` with which it refuses a duplicate of a running request")
	f.StringSliceVar(&o.Skip, "skip", nil, "leave these cases out, a `LIST`")
	f.StringSliceVar(&o.Only, "only", nil, "run these cases alone, a `LIST`")
	f.StringArrayVar(&c.headers, "header", nil, "add the field `NAME: VALUE` to every request; can be repeated")
	f.StringVar(&c.restart, "restart", "", "a shell `COMMAND` that stops the target, starts it again and ends when it serves")
	f.DurationVar(&o.Timeout, "timeout", conform.DefaultTimeout, "how long a case may take")
	f.IntVar(&o.Parallel, "parallel", conform.DefaultParallel, "how many cases run at once")
	f.BoolVar(&c.json, "json", false, "print one JSON object a line: the cases, then the summary")
	f.BoolVar(&c.list, "list", false, "print the cases with their sources, in Markdown, and check nothing")
	return cmd
}

// read takes in what is not an option yet.
func (c *conformity) read() error {
	if c.options.Target == "" {
		return usagef("target: name the implementation by its URL, as in --target http://127.0.0.1:8080")
	}
	c.options.Profile = conform.Profile(c.profile)
	for _, line := range c.headers {
		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return usagef("header: %s is not of the form NAME: VALUE", quote(line))
		}
		if c.options.Header == nil {
			c.options.Header = make(http.Header)
		}
		c.options.Header.Add(name, strings.TrimSpace(value))
	}
	return nil
}

// check runs the kit and reports.
func (p *program) check(ctx context.Context, c *conformity) error {
	origin, err := conform.Listen(c.origin)
	if err != nil {
		return &failure{is: conform.ErrOrigin, text: strings.TrimPrefix(err.Error(), "conform: ")}
	}
	defer origin.Close()
	c.options.Origin = origin
	if c.restart != "" {
		c.options.Restart = func(ctx context.Context) error { return restart(ctx, c.restart, p.env.Stderr) }
	}
	report, err := conform.Run(ctx, &c.options)
	if err != nil {
		return c.explain(err)
	}
	write := report.WriteText
	if c.json {
		write = report.WriteJSON
	}
	if err := write(p.env.Stdout); err != nil {
		return err
	}
	if !report.Conforms() {
		return errNonconforming
	}
	return nil
}

// explain makes the kit's error the program's.
func (c *conformity) explain(err error) error {
	switch {
	case errors.Is(err, conform.ErrOrigin):
		return fmt.Errorf("%w; let it forward to http://%s, or name the address to which it forwards with --origin", err, c.origin)
	case errors.Is(err, conform.ErrTarget):
		return err
	}
	// What is left is an option, which has another name here.
	text := strings.TrimPrefix(err.Error(), "conform: ")
	name, ok := strings.CutPrefix(text, "Options.")
	if !ok {
		return err
	}
	flag := strings.NewReplacer("ConflictStatus", "conflict-status", "Target", "target", "Only", "only", "Skip", "skip",
		"Header", "header", "Profile", "profile", "Timeout", "timeout", "Parallel", "parallel").Replace(name)
	return usagef("%s", flag)
}

// restartLimit bounds a restart of the target; restartLinger is how long its command's
// output is waited for once it has ended, because the target may have inherited it.
const (
	restartLimit  = 30 * time.Second
	restartLinger = 200 * time.Millisecond
)

// restart runs the command that restarts the target.
func restart(ctx context.Context, command string, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Stdout, cmd.Stderr = stderr, stderr
	cmd.WaitDelay = restartLinger
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

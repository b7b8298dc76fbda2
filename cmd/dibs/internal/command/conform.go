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
	"github.com/dibs-go/dibs/internal/progress"
)

// conformity has the flags of dibs conform.
type conformity struct {
	options conform.Options
	profile string
	headers []string
	restart string
	origin  string
	levels  []string
	json    bool
	quiet   bool
	list    bool
}

// errNonconforming ends the command if a case failed that must pass. It has no message,
// because the report says it.
var errNonconforming = &failure{is: errors.New("does not conform")}

func (p *program) conform() *cobra.Command {
	var c conformity
	cmd := &cobra.Command{
		Use:   "conform --target URL",
		Short: "Check any implementation of idempotent HTTP",
		Long: `Sends requests to a server that promises idempotent HTTP. Checks its answers,
and how often it forwarded each request. There are more than a hundred cases
from the IETF draft, the RFCs and the practice of providers, each with its
source. docs/conformance.md and --list have the cases.

The target forwards requests to the address of --origin, where the kit answers
and counts them. With --service the target answers by itself, such as another
team's API: then the kit judges what the answers show, and prints "not judged"
for the rest. Its requests run there, so name a system for tests.

Prints a line for each case. Below a case that failed it prints what happened. A
case for something that the target does not claim is skipped, never passed. The
last line has the cases that failed and must pass. --quiet prints only failed
cases. A terminal shows meanwhile how many cases are done.

Exits with 1 if a case failed that must pass, and with 69 if nothing could be
checked.`,
		Example: `  dibs conform --target http://127.0.0.1:8080 --origin 127.0.0.1:3000
  dibs conform --target http://127.0.0.1:8080 --profile dibs
  dibs conform --target http://127.0.0.1:8080 --level must --quiet
  dibs conform --service --target https://staging.example/v1/orders \
    --body '{"item":"a book"}' --other-body '{"item":"a pen"}' --header 'Authorization: Bearer …'`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			if c.list {
				return conform.WriteList(p.env.Stdout)
			}
			if err := c.read(); err != nil {
				return err
			}
			if c.options.Service && cmd.Flags().Changed("origin") {
				return usagef("origin: it cannot be used together with --service, whose target answers by itself; remove one of them")
			}
			return p.check(cmd.Context(), &c)
		}),
	}
	f, o := cmd.Flags(), &c.options
	f.StringVar(&o.Target, "target", "", "the `URL` of the implementation")
	f.StringVar(&c.origin, "origin", "127.0.0.1:3000", "the `ADDR` on which the kit answers the requests that the target forwards")
	f.BoolVar(&o.Service, "service", false, "the target answers by itself, and its URL is that of the requests: judge only what the answers show")
	f.StringVar(&o.Body, "body", "", "with --service: the `JSON` of a request that the service accepts (default {\"amount\":1200})")
	f.StringVar(&o.OtherBody, "other-body", "", "with --service: the `JSON` of another request that it accepts (default {\"amount\":1300})")
	f.StringVar(&c.profile, "profile", string(conform.Draft), "`WHAT` the target claims: draft, dibs, stripe, acp (Agentic Commerce Protocol) or ucp (Universal Commerce Protocol)")
	f.BoolVar(&o.RequireKey, "require-key", false, "the target refuses requests without a key")
	f.BoolVar(&o.StrictKey, "strict-key", false, "the target refuses keys without quotes")
	f.BoolVar(&o.Keeps5xx, "keeps-5xx", false, "the target stores answers of 500 and above")
	f.IntVar(&o.ConflictStatus, "conflict-status", http.StatusConflict, "the `STATUS` with which the target refuses a duplicate of a running request")
	f.IntVar(&o.MismatchStatus, "mismatch-status", 0, "the `STATUS` with which the target refuses another request under a used key (default what the profile says)")
	f.StringSliceVar(&o.Skip, "skip", nil, "skip these cases, a `LIST`")
	f.StringSliceVar(&o.Only, "only", nil, "run only these cases, a `LIST`")
	f.StringArrayVar(&c.headers, "header", nil, "add the field `NAME: VALUE` to every request; can be repeated")
	f.StringVar(&c.restart, "restart", "", "a shell `COMMAND` that restarts the target and ends when the target serves")
	durationVar(f, &o.Timeout, "timeout", conform.DefaultTimeout, "how long a case may take")
	f.IntVar(&o.Parallel, "parallel", conform.DefaultParallel, "how many cases run at once")
	f.StringSliceVar(&c.levels, "level", nil, "run only the cases of these levels, a `LIST` of must, should, practice and extension")
	f.BoolVar(&c.quiet, "quiet", false, "print only the cases that failed, and the summary")
	f.BoolVar(&c.json, "json", false, "print one JSON object a line: the cases, then the summary")
	f.BoolVar(&c.list, "list", false, "print the cases with their sources, in Markdown, and check nothing")
	complete(cmd, "profile", profiles()...)
	complete(cmd, "level", levels()...)
	for _, name := range []string{"only", "skip"} {
		complete(cmd, name, caseIDs()...)
	}
	return cmd
}

// profiles returns the names of the profiles.
func profiles() (names []string) {
	for _, p := range conform.Profiles {
		names = append(names, string(p))
	}
	return names
}

// levels returns the names of the levels.
func levels() (names []string) {
	for _, l := range conform.Levels {
		names = append(names, string(l))
	}
	return names
}

// caseIDs returns the IDs of all cases.
func caseIDs() (ids []string) {
	for _, c := range conform.Cases() {
		ids = append(ids, c.ID)
	}
	return ids
}

// read sets the options that have no flag of their own type.
func (c *conformity) read() error {
	if c.options.Target == "" {
		return usagef("target: name the implementation by its URL, as in --target http://127.0.0.1:8080")
	}
	if c.quiet && c.json {
		return usagef("quiet: it cannot be used together with --json; remove one of them")
	}
	c.options.Profile = conform.Profile(c.profile)
	for _, level := range c.levels {
		c.options.Levels = append(c.options.Levels, conform.Level(level))
	}
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

// check runs the kit and prints its report.
func (p *program) check(ctx context.Context, c *conformity) error {
	if !c.options.Service {
		origin, err := conform.Listen(c.origin)
		if err != nil {
			return &failure{is: conform.ErrOrigin, text: strings.TrimPrefix(err.Error(), "conform: ")}
		}
		defer origin.Close()
		c.options.Origin = origin
	}
	line := progress.New(p.env.Stderr, p.env.Getenv)
	if c.restart != "" {
		c.options.Restart = func(ctx context.Context) error { return restart(ctx, c.restart, p.env.Stderr) }
	}
	c.options.Progress = func(done, all, failed int) {
		line.Show(fmt.Sprintf("%d of %d cases are done, %d failed", done, all, failed))
	}
	report, err := conform.Run(ctx, &c.options)
	line.Show("")
	if err != nil {
		return c.explain(err)
	}
	write := report.WriteText
	switch {
	case c.json:
		write = report.WriteJSON
	case c.quiet:
		write = report.WriteFailed
	}
	if err := write(p.env.Stdout); err != nil {
		return err
	}
	if !report.Conforms() {
		return errNonconforming
	}
	return nil
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
		flag += "; dibs conform --list has all cases"
	}
	return usagef("%s", flag)
}

// restartLimit bounds a restart of the target. restartLinger bounds the wait for the output
// after the command has ended, because the target may have inherited it.
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

package command

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/dialect"
	"github.com/dibs-go/dibs/internal/oncerecord"
	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// verdict is what an operator says about an unknown outcome.
type verdict struct {
	rerun     bool
	status    int
	result    string
	text      string
	headers   []string
	body      string
	retention time.Duration
	keyRing   string
	yes       bool
}

func (p *program) resolve() *cobra.Command {
	var s selection
	var v verdict
	cmd := &cobra.Command{
		Use:   "resolve (KEY | --id ID) (--status N | --text TEXT | --result JSON | --rerun)",
		Short: "Resolve a run whose outcome is unknown, or was not stored",
		Long: `With --on-crash at-most-once, a request whose proxy crashed is not run again: it
may or may not have taken effect. Its retries get the problem "outcome unknown".
A function of once that must run at most once is the same, and its callers get
an error. Find out what happened, then resolve it:

  --status N      the request took effect: retries get this answer
  --text TEXT     the tool of an agent (MCP) ran: retries get this text
  --result JSON   the function of once ran: callers get this result
  --rerun         it did not take effect: the next one runs

A run that was done, but whose answer or result could not be stored, is resolved
in the same way. The new record then answers requests with any fingerprint.

The client's problem document names the attempt in "instance", and "dibs show"
prints its ID.
Asks before it changes anything, unless --yes is given. Exits with 1 if there is
no such attempt, or it has its outcome.`,
		Example: `  dibs resolve --id q7k2v5m3x4zabcde --rerun
  dibs resolve urn:dibs:claim:q7k2v5m3x4zabcde --status 201 \
      --header 'Content-Type: application/json' --body '{"id":"ch_17"}' --yes`,
		Args: oneKey,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			if err := s.read(cmd.Flags(), args); err != nil {
				return err
			}
			if err := v.check(cmd.Flags()); err != nil {
				return err
			}
			return p.operate(cmd.Context(), func(opened *anystore.Store, in store.Inspector) error {
				return p.resolveOne(cmd.Context(), in, opened.Store, &s, &v, cmd.Flags())
			})
		}),
	}
	s.bind(cmd.Flags())
	f := cmd.Flags()
	f.BoolVar(&v.rerun, "rerun", false, "let the next retry run")
	f.IntVar(&v.status, "status", 0, "answer retries with this `STATUS`")
	f.StringVar(&v.text, "text", "", "answer retries of a call of a tool (MCP) with this `TEXT`")
	f.StringVar(&v.result, "result", "", "give callers of once this result, as `JSON`")
	f.StringArrayVar(&v.headers, "header", nil, "a `FIELD` of that answer, as 'Name: value'; can be repeated")
	f.StringVar(&v.body, "body", "", "the `TEXT` of that answer, at most 1 MiB; - reads it from stdin")
	durationVar(f, &v.retention, "retention", idempotency.DefaultRetention, "how long that answer or result is stored")
	f.StringVar(&v.keyRing, "key-ring", "", "encrypt that answer with the key ring in a `FILE`, or in an environment variable, as env:NAME")
	f.BoolVar(&v.yes, "yes", false, "do not ask")
	p.storeFlags(f)
	p.completeKeys(cmd, store.ConditionUnknown)
	return cmd
}

// check refuses flags that contradict each other.
func (v *verdict) check(fs *pflag.FlagSet) error {
	chosen := 0
	for _, is := range []bool{fs.Changed("status"), fs.Changed("text"), fs.Changed("result"), v.rerun} {
		if is {
			chosen++
		}
	}
	if chosen != 1 {
		return usagef("choose the outcome: --status N, --text TEXT or --result JSON if it took effect, --rerun if it did not")
	}
	for _, name := range []string{"header", "body", "key-ring", "retention"} {
		switch {
		case v.rerun && fs.Changed(name):
			return usagef("--%s: it has no effect with --rerun; remove it", name)
		case fs.Changed("result") && fs.Changed(name) && name != "retention":
			return usagef("--%s: it has no effect with --result; remove it", name)
		case fs.Changed("text") && fs.Changed(name) && name != "retention" && name != "key-ring":
			return usagef("--%s: it has no effect with --text; remove it", name)
		}
	}
	switch {
	case v.rerun:
	case fs.Changed("result") && !json.Valid([]byte(v.result)):
		return usagef("--result: it is not JSON; quote a text, as in --result '\"paid\"'")
	case fs.Changed("text") && v.text == "":
		return usagef("--text: it is empty")
	case fs.Changed("text"):
		v.status, v.headers, v.body = http.StatusOK, nil, string(dialect.TextAnswer(v.text))
	case !fs.Changed("result") && (v.status < 200 || v.status > 599):
		return usagef("--status: %d is not the status of an answer, 200 to 599", v.status)
	}
	if !v.rerun && (v.retention < time.Second || v.retention > idempotency.MaxRetention) {
		return usagef("--retention: %v is out of range; it must be 1s to %v", v.retention, idempotency.MaxRetention)
	}
	for _, h := range v.headers {
		if _, err := parseField(h); err != nil {
			return usagef("--header: %s is not of the form 'Name: value'", quote(h))
		}
	}
	return nil
}

// parseField reads a header field.
func parseField(line string) (textproto.MIMEHeader, error) {
	return textproto.NewReader(bufio.NewReader(strings.NewReader(line + "\r\n\r\n"))).ReadMIMEHeader()
}

// answer returns the answer for retries.
func (v *verdict) answer(stdin io.Reader) (*idempotency.Answer, error) {
	a := &idempotency.Answer{Status: v.status, Header: http.Header{}, Body: []byte(v.body)}
	for _, line := range v.headers {
		field, _ := parseField(line) // was checked
		for name, values := range field {
			a.Header[name] = append(a.Header[name], values...)
		}
	}
	if v.body == "-" {
		var err error
		if a.Body, err = io.ReadAll(io.LimitReader(stdin, idempotency.DefaultMaxStored+1)); err != nil {
			return nil, fmt.Errorf("--body: %w", err)
		}
	}
	if len(a.Body) > idempotency.DefaultMaxStored { // because no proxy with the default would send it
		return nil, usagef("--body: it is longer than %s; store a shorter one", quantity.SizeText(idempotency.DefaultMaxStored))
	}
	return a, nil
}

func (p *program) resolveOne(ctx context.Context, in store.Inspector, opened dibs.Store, s *selection, v *verdict, fs *pflag.FlagSet) error {
	e, id, err := p.findUnresolved(ctx, in, s, fs)
	if err != nil {
		return err
	}
	name := quote(e.Key.Name)
	_, isHTTP := idempotency.KeyPart(e.Key.Name)
	switch {
	case !isHTTP && fs.Changed("status"):
		return usagef("--status: %s is not the key of an HTTP request; use --result or --rerun", name)
	case isHTTP && fs.Changed("result"):
		return usagef("--result: %s is the key of an HTTP request; use --status or --rerun", name)
	case fs.Changed("text") && !strings.HasPrefix(e.Key.Name, dialect.CallPrefix):
		return usagef("--text: %s is not the key of a call of a tool (MCP); use %s or --rerun", name, map[bool]string{true: "--status", false: "--result"}[isHTTP])
	}
	if v.rerun {
		return p.letRun(ctx, in, e, id, v)
	}
	data, question, then, err := p.outcome(e, v, isHTTP)
	if err != nil {
		return err
	}
	if err := p.confirm(question, v.yes); err != nil {
		return err
	}
	if e.Condition == store.ConditionDone {
		err = p.replace(ctx, in, opened, e.Key, data, v.retention)
	} else {
		var done bool
		done, err = ask(ctx, "resolve", func(ctx context.Context) (bool, error) {
			return in.Resolve(ctx, e.Key, id, data, v.retention)
		})
		if err == nil && !done {
			err = absentf("the attempt %s was resolved meanwhile", id)
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(p.env.Stdout, "%s is done: %s for %s\n", name, then, span(v.retention))
	return nil
}

// outcome returns the record of the verdict, the question before it is stored, and what it brings
// about.
func (p *program) outcome(e store.Entry, v *verdict, isHTTP bool) (data []byte, question, then string, err error) {
	name := quote(e.Key.Name)
	if !isHTTP {
		data, err = json.Marshal(oncerecord.Record{Value: json.RawMessage(v.result)})
		return data, fmt.Sprintf("Give callers of %s a result of %d bytes?", name, len(v.result)), "callers get that result", err
	}
	a, err := v.answer(p.env.Stdin)
	if err != nil {
		return nil, "", "", err
	}
	if data, err = idempotency.EncodeAnswer(e.Key.Name, a); err != nil {
		if strings.HasPrefix(e.Key.Name, dialect.CallPrefix) {
			return nil, "", "", usagef("%v; --text makes one of the tool's text", err)
		}
		return nil, "", "", usagef("%v", err)
	}
	ring, err := proxy.ReadKeyRing(v.keyRing)
	if err != nil {
		return nil, "", "", usagef("--key-ring: %v", err)
	}
	data = ring.Encrypt(e.Key, dibs.Fingerprint{}, v.retention, data)
	return data, fmt.Sprintf("Answer retries of %s with %d and a body of %d bytes?", name, v.status, len(a.Body)), fmt.Sprintf("retries get %d", v.status), nil
}

// letRun lets the next retry run.
func (p *program) letRun(ctx context.Context, in store.Inspector, e store.Entry, id string, v *verdict) error {
	name := quote(e.Key.Name)
	if err := p.confirm("Let "+name+" run again?", v.yes); err != nil {
		return err
	}
	var ended bool
	var err error
	if e.Condition == store.ConditionDone {
		ended, err = ask(ctx, "forget", func(ctx context.Context) (bool, error) { return in.Forget(ctx, e.Key, id) })
	} else {
		var n int
		n, err = forceRelease(ctx, in, e.Key, id)
		ended = n > 0
	}
	switch {
	case err != nil:
		return err
	case !ended:
		return absentf("the attempt %s was resolved meanwhile", id)
	}
	fmt.Fprintf(p.env.Stdout, "%s is free: the next retry runs\n", name)
	return nil
}

// replace replaces the note that an outcome was not stored. It holds the key meanwhile, so that no
// other operator does the same.
func (p *program) replace(ctx context.Context, in store.Inspector, s dibs.Store, key dibs.Key, data []byte, retention time.Duration) (err error) {
	client, err := dibs.New(s, &dibs.Options{Namespace: key.Namespace, Label: "dibs resolve", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	lease, err := client.TryAcquire(ctx, key.Name, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release()) }()
	found, err := all(entries(ctx, in, store.Query{Namespace: &key.Namespace, Name: key.Name, Data: true}))
	if err != nil {
		return err
	}
	if len(found) != 1 || !notStored(found[0]) {
		return absentf("%s was resolved meanwhile", quote(key.Name))
	}
	return lease.Complete(ctx, data, retention)
}

// findUnresolved returns the selected key, and its attempt whose outcome is unknown or was not
// stored.
func (p *program) findUnresolved(ctx context.Context, in store.Inspector, s *selection, fs *pflag.FlagSet) (store.Entry, string, error) {
	found, err := p.find(ctx, in, s, fs, true)
	if err != nil {
		return store.Entry{}, "", err
	}
	e := found[0]
	switch {
	case e.Condition == store.ConditionUnknown && len(e.Runs) > 0:
		return e, e.Runs[0].ID, nil
	case e.Condition == store.ConditionDone && notStored(e):
		return e, e.Record.ID, nil
	}
	return e, "", absentf("there is nothing to resolve: the outcome of %s is not unknown, it is %s", quote(e.Key.Name), e.Condition)
}

package command

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores"
)

// verdict is what an operator says about an unknown outcome.
type verdict struct {
	rerun     bool
	status    int
	headers   []string
	body      string
	bodyFile  string
	retention time.Duration
	keyRing   string
	yes       bool
}

func (p *program) settle() *cobra.Command {
	var s selection
	var v verdict
	cmd := &cobra.Command{
		Use:   "settle (KEY | --id ID) (--status N | --rerun)",
		Short: "Settle a request whose outcome is unknown",
		Long: `With --on-crash at-most-once, a request whose proxy crashed is not run again: it
may or may not have taken effect. Its retries get the problem "outcome unknown".
Find out what happened, then settle the request:

  --status N   it took effect: retries get this answer
  --rerun      it did not take effect: the next retry runs

The client's problem document names the attempt in "instance", and "dibs show"
prints its ID.
Asks before it changes anything, unless --yes is given. Exits with 1 if there is
no such attempt, or its outcome is not unknown.`,
		Example: `  dibs settle --id q7k2v5m3x4zabcde --rerun
  dibs settle urn:dibs:claim:q7k2v5m3x4zabcde --status 201 \
      --header 'Content-Type: application/json' --body '{"id":"ch_17"}' --yes`,
		Args: oneKey,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			if err := s.read(cmd.Flags(), args); err != nil {
				return err
			}
			if err := v.check(cmd.Flags()); err != nil {
				return err
			}
			return p.operate(cmd.Context(), func(_ *stores.Store, in store.Inspector) error {
				return p.settleOne(cmd.Context(), in, &s, &v, cmd.Flags())
			})
		}),
	}
	s.bind(cmd.Flags())
	f := cmd.Flags()
	f.BoolVar(&v.rerun, "rerun", false, "let the next retry run")
	f.IntVar(&v.status, "status", 0, "answer retries with this `STATUS`")
	f.StringArrayVar(&v.headers, "header", nil, "a `FIELD` of that answer, as 'Name: value'; can be repeated")
	f.StringVar(&v.body, "body", "", "the `TEXT` of that answer")
	f.StringVar(&v.bodyFile, "body-file", "", "the `FILE` with the body of that answer; - is stdin")
	durationVar(f, &v.retention, "retention", idempotency.DefaultRetention, "how long that answer is stored")
	f.StringVar(&v.keyRing, "key-ring", "", "encrypt that answer with the key ring in a `FILE`, or in an environment variable, as env:NAME")
	f.BoolVar(&v.yes, "yes", false, "do not ask")
	p.storeFlags(f)
	p.completeKeys(cmd, store.ConditionUnknown)
	return cmd
}

// check refuses flags that contradict each other.
func (v *verdict) check(fs *pflag.FlagSet) error {
	answers := fs.Changed("status")
	if answers == v.rerun {
		return usagef("choose the outcome: --status N if it took effect, --rerun if it did not")
	}
	for _, name := range []string{"header", "body", "body-file", "retention", "key-ring"} {
		if v.rerun && fs.Changed(name) {
			return usagef("%s: it has no effect with --rerun; remove it", name)
		}
	}
	switch {
	case v.rerun:
	case v.status < 200 || v.status > 599:
		return usagef("status: %d is not the status of an answer, 200 to 599", v.status)
	case fs.Changed("body") && fs.Changed("body-file"):
		return usagef("body-file: it cannot be used together with --body")
	case v.retention < time.Second || v.retention > idempotency.MaxRetention:
		return usagef("retention: %v is out of range; it must be 1s to %v", v.retention, idempotency.MaxRetention)
	}
	for _, h := range v.headers {
		if _, err := parseField(h); err != nil {
			return usagef("header: %s is not of the form 'Name: value'", quote(h))
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
	var err error
	switch v.bodyFile {
	case "":
	case "-":
		a.Body, err = io.ReadAll(stdin)
	default:
		a.Body, err = os.ReadFile(v.bodyFile)
	}
	if err != nil {
		return nil, fmt.Errorf("body-file: %w", err)
	}
	return a, nil
}

func (p *program) settleOne(ctx context.Context, in store.Inspector, s *selection, v *verdict, fs *pflag.FlagSet) error {
	e, id, err := p.findUnknown(ctx, in, s, fs)
	if err != nil {
		return err
	}
	_, isHTTP := idempotency.KeyPart(e.Key.Name)
	if !isHTTP && !v.rerun {
		return usagef("status: %s is not the key of an HTTP request; use --rerun", quote(e.Key.Name))
	}
	var data []byte
	question := "Let " + quote(e.Key.Name) + " run again?"
	if !v.rerun {
		a, err := v.answer(p.env.Stdin)
		if err != nil {
			return err
		}
		if data, err = idempotency.EncodeAnswer(a); err != nil {
			return usagef("%v", err)
		}
		ring, err := proxy.ReadKeyRing(v.keyRing)
		if err != nil {
			return usagef("key-ring: %v", err)
		}
		data = ring.Encrypt(e.Key, dibs.Fingerprint{}, v.retention, data)
		question = fmt.Sprintf("Answer retries of %s with %d and a body of %d bytes?", quote(e.Key.Name), v.status, len(a.Body))
	}
	if err := p.confirm(question, v.yes); err != nil {
		return err
	}
	if v.rerun {
		n, err := forceRelease(ctx, in, e.Key, id)
		switch {
		case err != nil:
			return err
		case n == 0:
			return absentf("the attempt %s was settled meanwhile", id)
		}
		fmt.Fprintf(p.env.Stdout, "%s is free: the next retry runs\n", quote(e.Key.Name))
		return nil
	}
	done, err := ask(ctx, "resolve", func(ctx context.Context) (bool, error) {
		return in.Resolve(ctx, e.Key, id, data, v.retention)
	})
	switch {
	case err != nil:
		return err
	case !done:
		return absentf("the attempt %s was settled meanwhile", id)
	}
	fmt.Fprintf(p.env.Stdout, "%s is done: retries get %d for %s\n", quote(e.Key.Name), v.status, span(v.retention))
	return nil
}

// findUnknown returns the selected key, and its attempt whose outcome is unknown.
func (p *program) findUnknown(ctx context.Context, in store.Inspector, s *selection, fs *pflag.FlagSet) (store.Entry, string, error) {
	found, err := p.find(ctx, in, s, fs, false)
	if err != nil {
		return store.Entry{}, "", err
	}
	e := found[0]
	if e.Condition != store.ConditionUnknown || len(e.Attempts) == 0 {
		return e, "", absentf("there is nothing to settle: the outcome of %s is not unknown, it is %s", quote(e.Key.Name), e.Condition)
	}
	return e, e.Attempts[0].ID, nil
}

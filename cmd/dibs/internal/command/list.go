package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/visible"
)

// list is what "dibs ls" was told.
type list struct {
	glob string
	all  bool
	json bool
}

func (p *program) list() *cobra.Command {
	var l list
	cmd := &cobra.Command{
		Use:   "ls [--glob PATTERN]",
		Short: "List the keys that are held, waited for or done",
		Long: `Lists what the store knows, sorted by key: who holds it (host, process and
command), since when, how long the lease lasts unless it is renewed, how many
wait, and the record that a finished holder left. A key with several holders has
a line for each.

A key with characters that a terminal would not show as they are is printed in
double quotes, with those characters escaped as in Go and JSON. --json prints
one object a line, for programs.`,
		Example: `  dibs ls
  dibs ls --glob 'backup*'
  dibs ls --json | jq -r 'select(.waiters > 10) | .key'`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			switch fs := cmd.Flags(); {
			case fs.Changed("glob") && l.glob == "":
				return usagef("glob: the pattern is empty; * matches all keys")
			case l.all && fs.Changed("namespace"):
				return usagef("all: not together with --namespace")
			}
			return p.listAll(cmd.Context(), &l)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&l.glob, "glob", "", "only the keys that match the `PATTERN`: * is any text, ? any byte")
	f.BoolVar(&l.all, "all", false, "the keys of all namespaces")
	f.BoolVar(&l.json, "json", false, "print one JSON object a line")
	p.storeFlags(f)
	return cmd
}

func (p *program) listAll(ctx context.Context, l *list) error {
	store, err := p.look(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	in, err := store.Inspector()
	if err != nil {
		return err
	}
	// A store may be large; what must not take long is the next entry.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(askLimit, func() { cancel(context.DeadlineExceeded) })
	defer patience.Stop()
	q := dibs.Query{Data: true} // for the status of an HTTP answer
	if !l.all {
		q.Namespace = &p.namespace
	}
	var lines []entryJSON
	now := time.Now()
	for e, err := range in.List(ctx, q) {
		patience.Reset(askLimit)
		if err != nil {
			return &dibs.StoreError{Op: "list", Err: err}
		}
		if l.glob == "" || glob(l.glob, e.Key.Name) {
			lines = append(lines, entryLines(e, now)...)
		}
	}
	slices.SortStableFunc(lines, func(a, b entryJSON) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.name, b.name), cmp.Compare(a.Fence, b.Fence))
	})
	if l.json {
		return writeLines(p.env.Stdout, lines)
	}
	return writeTable(p.env.Stdout, lines, l.all, now)
}

// writeTable writes lines as people read them. Nothing is written of none.
func writeTable(w io.Writer, lines []entryJSON, namespaces bool, now time.Time) error {
	if len(lines) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(namespace string, cells ...string) {
		if namespaces {
			cells = slices.Insert(cells, 0, namespace)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	row("NAMESPACE", "KEY", "STATE", "HOLDER", "SINCE", "LEFT", "WAITERS", "RECORD")
	for _, e := range lines {
		holder, since, left, record := "-", "-", "-", "-"
		if h := e.Holder; h != nil {
			holder = visible.Text(strings.TrimSpace(h.Host + " " + strconv.Itoa(h.PID) + " " + h.Label))
			since = span(now.Sub(h.Since)) + " ago"
		}
		if e.LeftMS != nil {
			left = span(max(time.Duration(*e.LeftMS)*time.Millisecond, 0))
		}
		if r := e.Record; r != nil {
			record = strconv.Itoa(r.Bytes) + " bytes"
			if r.Status != 0 {
				record = "HTTP " + strconv.Itoa(r.Status)
			}
			record += ", " + span(time.Duration(r.AgeMS)*time.Millisecond) + " old"
		}
		row(cmp.Or(e.Namespace, "-"), visible.Text(e.name), e.State, holder, since, left, strconv.Itoa(e.Waiters), record)
	}
	return t.Flush()
}

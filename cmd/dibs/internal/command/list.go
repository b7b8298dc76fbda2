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
	"github.com/dibs-go/dibs/internal/stores"
)

// list has the flags of dibs ls.
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
		Long: `Lists the keys of the store, sorted. A line has the holder (host, process and
command), since when it holds the key, how much of its lease is left, the number
of waiters, and the record that a finished holder left. A key with several
holders has a line for each.

A key with characters that a terminal does not show is printed in double quotes.
Those characters are escaped as in Go and JSON. --json prints one object a line,
for programs.`,
		Example: `  dibs ls
  dibs ls --glob 'backup*'
  dibs ls --json | jq -r 'select(.waiters > 10) | .key'`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			switch fs := cmd.Flags(); {
			case fs.Changed("glob") && l.glob == "":
				return usagef("glob: the pattern is empty; * matches all keys")
			case l.all && fs.Changed("namespace"):
				return usagef("all: it cannot be used together with --namespace")
			}
			return p.operate(cmd.Context(), func(_ *stores.Store, in dibs.Inspector) error {
				return p.listAll(cmd.Context(), in, &l)
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&l.glob, "glob", "", "list only keys that match the `PATTERN`: * is any text, ? any byte")
	f.BoolVar(&l.all, "all", false, "list the keys of all namespaces")
	f.BoolVar(&l.json, "json", false, "print one JSON object a line")
	p.storeFlags(f)
	return cmd
}

func (p *program) listAll(ctx context.Context, in dibs.Inspector, l *list) error {
	// The limit is for each entry, because a store may be large.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(askLimit, func() { cancel(context.DeadlineExceeded) })
	defer limit.Stop()
	q := dibs.Query{Data: true} // for the status of an HTTP answer
	if !l.all {
		q.Namespace = &p.namespace
	}
	var lines []entryJSON
	now := time.Now()
	for e, err := range in.List(ctx, q) {
		limit.Reset(askLimit)
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

// writeTable writes lines for people. It writes nothing if there are none.
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
			holder = cell(strings.TrimSpace(h.Host + " " + strconv.Itoa(h.PID) + " " + h.Label))
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
			if r.EncryptedWith != "" {
				record += " encrypted"
			}
			record += ", " + span(time.Duration(r.AgeMS)*time.Millisecond) + " old"
		}
		row(cmp.Or(e.Namespace, "-"), cell(e.name), e.State, holder, since, left, strconv.Itoa(e.Waiters), record)
	}
	return t.Flush()
}

package command

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dibs-go/dibs/store"
)

// writeTable writes lines for people. It writes nothing if there are none.
func writeTable(w io.Writer, paint painter, lines []entryJSON, namespaces bool, now time.Time) error {
	if len(lines) == 0 {
		return nil
	}
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	row := func(namespace string, cells ...string) {
		if namespaces {
			cells = slices.Insert(cells, 0, namespace)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	row("NAMESPACE", "KEY", "DIGEST", "STATE", "HOLDER", "SINCE", "LEFT", "WAITERS", "RESERVED", "RECORD")
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
		row(cmp.Or(e.Namespace, "-"), cell(e.name), e.Digest, e.State, holder, since, left, strconv.Itoa(e.Waiters), strconv.Itoa(e.Reserved), record)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, paint.paintColumn(table.String(), "STATE", func(row int) string { return colourOf(store.Condition(lines[row].State)) }))
	return err
}

package command

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/record"
	"github.com/dibs-go/dibs/store"
)

// writeRun writes the lines of dibs show about the run that a record describes.
func writeRun(w io.Writer, r *store.RecordInfo, run *record.Run) {
	if run == nil {
		return
	}
	took := time.Duration(run.TookMS) * time.Millisecond
	began := run.Began.UTC().Format(time.RFC3339)
	for _, line := range [][2]string{
		{"run", run.Outcome()},
		{"command", quote(run.Command)},
		{"host", quote(run.Host)},
		{"began", began + ", " + span(r.Age+took) + " ago; it took " + span(took)},
	} {
		fmt.Fprintln(w, strings.TrimSpace(fmt.Sprintf("%-9s  %s", line[0], line[1])))
	}
}

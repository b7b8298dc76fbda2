package riverjobs

import (
	"context"
	_ "embed"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
)

//go:embed sql/wake.sql
var wakeSQL string

//go:embed sql/due.sql
var dueSQL string

//go:embed sql/lock.sql
var lockSQL string

// dueLimit bounds noting down since when a job waits.
const dueLimit = 5 * time.Second

// in returns a statement for River's table in that schema; River has seen to it that
// the name needs no quotes.
func in(schema, statement string) string {
	table := "river_job"
	if schema != "" {
		table = schema + "." + table
	}
	return strings.ReplaceAll(statement, "@job", table)
}

// snoozes returns how often the job was snoozed before this delivery.
func snoozes(row *rivertype.JobRow) int64 {
	var m struct {
		Snoozes int64 `json:"snoozes"`
	}
	_ = json.Unmarshal(row.Metadata, &m)
	return m.Snoozes
}

// wake makes the job available that this delivery has put off; see jobs.Job.Wake.
// River's own JobRetry would also bring jobs back that are over.
func (d *delivery) wake(ctx context.Context) (bool, error) {
	var found string
	err := d.client.Driver().GetExecutor().QueryRow(ctx, in(d.client.Schema(), wakeSQL),
		d.row.ID, d.row.AttemptedAt, d.row.Attempt-1, strconv.FormatInt(snoozes(d.row)+1, 10), d.row.ScheduledAt, d.client.Schema(),
	).Scan(&found)
	if err != nil {
		return false, err
	}
	if found == "over" { // it was cancelled, or deleted
		return false, jobs.ErrGone
	}
	return found != "running", nil
}

// remember notes down when the job was due, if there is a limit to how long it waits.
func (d *delivery) remember() {
	if d.mutex.options.Jobs.Limit == 0 || d.client == nil || d.note.Try == d.row.Attempt && !d.note.Due.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), dueLimit)
	defer cancel()
	text, _ := json.Marshal(note{Due: d.row.ScheduledAt, Try: d.row.Attempt})
	// If this fails, the limit counts anew when the job comes back.
	_ = d.client.Driver().GetExecutor().Exec(ctx, in(d.client.Schema(), dueSQL), d.row.ID, d.row.AttemptedAt, string(text))
}

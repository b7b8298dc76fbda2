package command

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/record"
	"github.com/dibs-go/dibs/store"
)

// entryJSON is an entry for programs.
type entryJSON struct {
	Key       *string     `json:"key,omitempty"`
	KeyBase64 string      `json:"key_base64,omitempty"`
	Namespace string      `json:"namespace"`
	Digest    string      `json:"digest"` // as in logs
	State     string      `json:"state"`
	Holder    *holderJSON `json:"holder,omitempty"`
	Fence     uint64      `json:"fence,omitempty"`
	Attempt   int         `json:"attempt,omitempty"`
	Permits   int         `json:"permits,omitempty"`
	LeftMS    *int64      `json:"left_ms,omitempty"`
	Waiters   int         `json:"waiters"`
	Reserved  int         `json:"reserved"`
	Places    []placeJSON `json:"places,omitempty"`
	Record    *recordJSON `json:"record,omitempty"`
	ID        string      `json:"id,omitempty"`

	name      string // the key, even if it is not text
	condition store.Condition
}

type holderJSON struct {
	Host  string    `json:"host"`
	PID   int       `json:"pid"`
	Label string    `json:"label"`
	Since time.Time `json:"since"`
}

type placeJSON struct {
	ID       string `json:"id"`
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	Label    string `json:"label"`
	LeftMS   int64  `json:"left_ms"`
	Reserved bool   `json:"reserved"`
	// Use of a reserved place: "waits" if its job waits now, "holds" if its job holds the key.
	Use      string `json:"use,omitempty"`
	BlocksMS int64  `json:"blocks_ms,omitempty"` // how long it can keep others from a free key
}

type recordJSON struct {
	Bytes  int   `json:"bytes"`
	AgeMS  int64 `json:"age_ms"`
	LeftMS int64 `json:"left_ms"`
	record.Content
}

// entryLines returns a line for each holder of a key, or one line if it has none.
func entryLines(e store.Entry, now time.Time) []entryJSON {
	j := entryJSON{
		Namespace: e.Key.Namespace,
		State:     string(e.Condition),
		Permits:   e.Permits,
		Digest:    e.Key.Digest(),
		Waiters:   e.Waiters,
		Reserved:  e.Reserved,
		name:      e.Key.Name,
		condition: e.Condition,
	}
	for _, p := range e.Places {
		j.Places = append(j.Places, placeJSON{
			ID: p.Token.ID(), Host: p.Owner.Host, PID: p.Owner.PID, Label: p.Owner.Label,
			LeftMS: p.Left.Milliseconds(), Reserved: p.Reserved, Use: string(p.Use), BlocksMS: p.Blocks.Milliseconds(),
		})
	}
	if utf8.ValidString(e.Key.Name) {
		j.Key = &e.Key.Name
	} else {
		j.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(e.Key.Name))
	}
	if r := e.Record; r != nil {
		j.Record = &recordJSON{Bytes: r.Bytes, AgeMS: r.Age.Milliseconds(), LeftMS: r.Left.Milliseconds(), Content: contentOf(e)}
		j.ID = r.ID
	}
	if len(e.Runs) == 0 {
		return []entryJSON{j}
	}
	lines := make([]entryJSON, len(e.Runs))
	for i, a := range e.Runs {
		left := a.Left.Milliseconds()
		line := j
		line.ID, line.Fence, line.Attempt, line.LeftMS = a.ID, a.Fence, a.Attempt, &left
		line.Holder = &holderJSON{Host: a.Owner.Host, PID: a.Owner.PID, Label: a.Owner.Label, Since: now.Add(-a.Since).UTC().Truncate(time.Millisecond)}
		if a.Left <= 0 && e.Condition == store.ConditionHeld {
			line.State = string(store.ConditionAbandoned) // by one of several holders
		}
		lines[i] = line
	}
	return lines
}

// writeLines writes lines for programs.
func writeLines(w io.Writer, lines []entryJSON) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	for _, line := range lines {
		if err := out.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// writeText writes an entry for people.
func writeText(w io.Writer, paint painter, e store.Entry) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s  "+format+"\n", append([]any{name}, args...)...)
	}
	line("key", "%s", quote(e.Key.Name))
	if e.Key.Namespace != "" {
		line("namespace", "%s", quote(e.Key.Namespace))
	}
	line("digest", "%s", e.Key.Digest())
	line("state", "%s", paint.paint(colourOf(e.Condition), stateText(e)))
	for _, a := range e.Runs {
		line("attempt", "%d, id %s, fence %d", a.Attempt, a.ID, a.Fence)
		line("holder", "%s", quote(holderText(a)))
		if a.Left > 0 {
			line("lease", "expires in %s unless it is renewed", span(a.Left))
		} else {
			line("lease", "expired %s ago", span(-a.Left))
		}
	}
	if e.Permits > 1 {
		line("permits", "%d", e.Permits)
	}
	if e.Waiters > 0 {
		line("waiters", "%d", e.Waiters)
	}
	if e.Reserved > 0 {
		line("reserved", "%d", e.Reserved)
	}
	if text := jobsText(e); text != "" {
		line("jobs", "%s", quote(text))
	}
	for _, p := range e.Places {
		line("place", "%s", placeText(p))
	}
	if r := e.Record; r != nil {
		line("record", "%s, stored %s ago, expires in %s", recordText(e), span(r.Age), span(r.Left))
		writeRun(&b, r, contentOf(e).Run)
		if len(e.Runs) == 0 {
			line("id", "%s", r.ID)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func stateText(e store.Entry) string {
	if e.Condition == store.ConditionUnknown {
		return "unknown: it may or may not have taken effect; see dibs resolve --help"
	}
	return string(e.Condition)
}

func holderText(a store.Run) string { return ownerText(a.Owner) + ", for " + span(a.Since) }

func ownerText(o store.Owner) string {
	text := o.Host + " " + strconv.Itoa(o.PID)
	if o.Label != "" {
		text += " (" + o.Label + ")"
	}
	return text
}

func placeText(p store.PlaceInfo) string {
	how := "waits"
	switch {
	case !p.Reserved:
	case p.Use == store.UsedByLease:
		how = "reserved; its job holds the key now"
	case p.Use == store.UsedByWait:
		how = "reserved; its job waits now"
	case p.Blocks < p.Left:
		how = "reserved; blocks others for " + span(p.Blocks) + " at most when the key is free, expires in " + span(p.Left)
	default:
		how = "reserved; blocks others when the key is free, until it expires in " + span(p.Left)
	}
	return p.Token.ID() + ", " + quote(ownerText(p.Owner)) + ", " + how
}

func recordText(e store.Entry) string {
	c := contentOf(e)
	switch a := c.Answer; {
	case c.EncryptedWith != "":
		return fmt.Sprintf("%d bytes, encrypted with the key %s", e.Record.Bytes, c.EncryptedWith)
	case a != nil && a.NotKept:
		return "an answer that was too large to be stored"
	case a != nil:
		return fmt.Sprintf("HTTP %d with a body of %d bytes", a.Status, len(a.Body))
	case c.NotStored():
		return "of a run whose result could not be stored (" + quote(c.NotKept) + "); see dibs resolve --help"
	default:
		return fmt.Sprintf("%d bytes", e.Record.Bytes)
	}
}

// contentOf returns what the record of a key holds.
func contentOf(e store.Entry) record.Content {
	if e.Record == nil {
		return record.Content{}
	}
	return record.Read(e.Key, e.Record.Data, maxAnswer)
}

// notStored reports whether a run was done whose answer or result could not be stored.
func notStored(e store.Entry) bool {
	c := contentOf(e)
	return c.NotStored()
}

// maxAnswer bounds the bodies of answers that are decoded.
const maxAnswer = 512 << 20

package page

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/internal/record"
	"github.com/dibs-go/dibs/internal/survey"
	"github.com/dibs-go/dibs/store"
)

// line is a key on the page: what GET /v1/keys says of it, and what a person reads.
type line struct {
	leaseapi.Entry
	record.Content
	Name   string `json:"name"` // the key with control and invisible characters escaped
	Link   string `json:"link"` // the query of the key's page
	HTTP   bool   `json:"http,omitempty"`
	Body   *body  `json:"body,omitempty"` // with Options.ShowBodies
	Waited wait   `json:"waited"`         // the oldest waiter
	Seen   []wait `json:"seen,omitempty"` // each place
}

// wait is how long a waiter has been seen to wait.
type wait struct {
	MS    int64 `json:"ms"`
	Least bool  `json:"least,omitempty"` // nobody looked when it began
}

func waitOf(w survey.Wait) wait { return wait{w.For.Milliseconds(), w.Least} }

// shown is how many places of a key are in a list.
const shown = 3

// lineOf returns the line of a key, with at most that many places.
func lineOf(k *survey.Key, places int) line {
	e := k.Entry
	e.Places = e.Places[:min(places, len(e.Places))]
	l := line{Entry: leaseapi.EntryOf(&e, false), Name: escape(e.Key.Name), Link: linkOf(e.Key), Waited: waitOf(k.Waited)}
	_, l.HTTP = idempotency.KeyPart(e.Key.Name)
	for i := range e.Places {
		seen := survey.Wait{Least: true} // of a key that the survey has not seen
		if i < len(k.Seen) {
			seen = k.Seen[i]
		}
		l.Seen = append(l.Seen, waitOf(seen))
	}
	return l
}

func linesOf(keys []survey.Key) []line {
	lines := make([]line, len(keys))
	for i := range keys {
		lines[i] = lineOf(&keys[i], shown)
	}
	return lines
}

// linkOf returns a query that names a key whatever its bytes are.
func linkOf(k store.Key) string {
	encode := base64.RawURLEncoding.EncodeToString
	return url.Values{"ns": {encode([]byte(k.Namespace))}, "key": {encode([]byte(k.Name))}}.Encode()
}

// keyOf returns the key of a linkOf.
func keyOf(v url.Values) (k store.Key, err error) {
	ns, err := base64.RawURLEncoding.DecodeString(v.Get("ns"))
	if err != nil {
		return k, err
	}
	name, err := base64.RawURLEncoding.DecodeString(v.Get("key"))
	if err != nil {
		return k, err
	}
	k = store.Key{Namespace: string(ns), Name: string(name)}
	return k, k.Validate()
}

// unescaper takes back what strconv.Quote escapes only because of its quotes.
var unescaper = strings.NewReplacer(`\"`, `"`)

// escape returns a text whose characters are all visible, in the order of their bytes.
func escape(s string) string {
	q := strconv.Quote(s)
	return unescaper.Replace(q[1 : len(q)-1])
}

package leaseapi

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/store"
)

// Entry is a key of a listing: a line of the answer to GET /v1/keys.
type Entry struct {
	Key       string  `json:"key,omitempty"`
	KeyB64    []byte  `json:"key_b64,omitempty"`
	Namespace string  `json:"namespace"`
	Digest    string  `json:"digest"`
	State     string  `json:"state"`
	Permits   int     `json:"permits,omitempty"`
	Runs      []Run   `json:"runs,omitempty"`
	Waiters   int     `json:"waiters"`
	Reserved  int     `json:"reserved"`
	Places    []Place `json:"places,omitempty"`
	Kept      *Kept   `json:"record,omitempty"`
}

// Run is a lease, live or abandoned.
type Run struct {
	ID      string   `json:"id"`
	Owner   ownerOut `json:"owner"`
	Fence   string   `json:"fence"`
	Attempt int      `json:"attempt"`
	Since   int64    `json:"since_ms"`
	Left    int64    `json:"left_ms"` // not positive if it has expired
}

// Place is a place in a key's queue.
type Place struct {
	ID       string   `json:"id"`
	Token    string   `json:"token,omitempty"` // for credentials with the role act
	Owner    ownerOut `json:"owner"`
	Left     int64    `json:"left_ms"`
	Reserved bool     `json:"reserved,omitempty"`
	Use      string   `json:"use,omitempty"`
	Blocks   int64    `json:"blocks_ms,omitempty"`
}

// Kept is what a listing says of a record.
type Kept struct {
	ID    string `json:"id"`
	Bytes int    `json:"bytes"`
	Age   int64  `json:"age_ms"`
	Left  int64  `json:"left_ms"`
	Data  []byte `json:"data,omitempty"` // if it was asked for, for credentials with the role act
}

// EntryOf returns the line of a key. Without secrets it has neither tokens nor data.
func EntryOf(e *store.Entry, secrets bool) Entry {
	out := Entry{
		Namespace: e.Key.Namespace, Digest: e.Key.Digest(), State: string(e.Condition),
		Permits: e.Permits, Waiters: e.Waiters, Reserved: e.Reserved,
	}
	if utf8.ValidString(e.Key.Name) {
		out.Key = e.Key.Name
	} else {
		out.KeyB64 = []byte(e.Key.Name)
	}
	for _, a := range e.Runs {
		out.Runs = append(out.Runs, Run{
			ID: a.ID, Owner: ownerOut(a.Owner), Fence: strconv.FormatUint(a.Fence, 10), Attempt: a.Attempt,
			Since: a.Since.Milliseconds(), Left: millis(a.Left),
		})
	}
	for _, p := range e.Places {
		place := Place{
			ID: p.Token.ID(), Owner: ownerOut(p.Owner), Left: millis(p.Left), Reserved: p.Reserved,
			Use: string(p.Use), Blocks: millis(p.Blocks),
		}
		if secrets {
			place.Token = hex.EncodeToString(p.Token[:])
		}
		out.Places = append(out.Places, place)
	}
	if r := e.Record; r != nil {
		out.Kept = &Kept{ID: r.ID, Bytes: r.Bytes, Age: r.Age.Milliseconds(), Left: millis(r.Left)}
		if secrets {
			out.Kept.Data = r.Data
		}
	}
	return out
}

// Entry returns what EntryOf was given.
func (e *Entry) Entry() (out store.Entry, err error) {
	out = store.Entry{
		Key: store.Key{Namespace: e.Namespace, Name: e.Key}, Condition: store.Condition(e.State),
		Permits: e.Permits, Waiters: e.Waiters, Reserved: e.Reserved,
	}
	if e.KeyB64 != nil {
		out.Key.Name = string(e.KeyB64)
	}
	for _, a := range e.Runs {
		attempt := store.Run{ID: a.ID, Owner: store.Owner(a.Owner), Attempt: a.Attempt, Since: fromMillis(a.Since), Left: fromMillis(a.Left)}
		if attempt.Fence, err = strconv.ParseUint(a.Fence, 10, 64); err != nil {
			return out, fmt.Errorf("the server answered with the fence %q", a.Fence)
		}
		out.Runs = append(out.Runs, attempt)
	}
	for _, p := range e.Places {
		place := store.PlaceInfo{Owner: store.Owner(p.Owner), Left: fromMillis(p.Left), Reserved: p.Reserved, Use: store.Use(p.Use), Blocks: fromMillis(p.Blocks)}
		if p.Token != "" {
			if err := readHex("token", p.Token, place.Token[:]); err != nil {
				return out, err
			}
		}
		out.Places = append(out.Places, place)
	}
	if k := e.Kept; k != nil {
		out.Record = &store.RecordInfo{ID: k.ID, Bytes: k.Bytes, Age: fromMillis(k.Age), Left: fromMillis(k.Left), Data: k.Data}
	}
	return out, nil
}

// Order is what an operator does to a key: the body of POST /v1/keys/release, forget and
// settle.
type Order struct {
	Key       store.Key
	ID        string        // of the attempt, or of the record to forget; "" for any
	Data      []byte        // settle: the record
	Retention time.Duration // settle
}

// ReadOrder reads the body of an order, which has a key and some of the other fields.
func ReadOrder(body []byte, others ...string) (o Order, err error) {
	var k keyed
	var id *string
	var retention *int64
	f := slices.DeleteFunc(k.fields(field{"id", &id}, field{"data", (*octets)(&o.Data)}, field{"retention_ms", &retention}), func(f field) bool {
		return !strings.HasPrefix(f.name, "key") && f.name != "namespace" && !slices.Contains(others, f.name)
	})
	if err := read(body, f); err != nil {
		return o, err
	}
	if o.Key, _, err = k.values(false); err != nil {
		return o, trimmed(err)
	}
	if id != nil {
		o.ID = *id
	}
	o.Retention = DefaultRetention
	if retention != nil {
		o.Retention = fromMillis(*retention)
	}
	if o.Retention < store.MinDuration {
		return o, errors.New("retention_ms must be at least 1")
	}
	return o, nil
}

// WriteOrder writes the body of an order. A Retention of 0 is left out.
func WriteOrder(o Order) []byte {
	return marshal(struct {
		elementOut
		ID        string `json:"id,omitempty"`
		Data      []byte `json:"data,omitempty"`
		Retention int64  `json:"retention_ms,omitempty"`
	}{elementOf(o.Key, store.Token{}), o.ID, o.Data, millis(o.Retention)})
}

// Done is the answer to an order: how many runs were ended, or how many keys were
// forgotten or settled.
type Done struct {
	Done int `json:"done"`
}

// WriteDone writes the answer to an order.
func WriteDone(n int) []byte { return marshal(Done{n}) }

// ReadDone reads the answer to an order.
func ReadDone(body []byte) (n int, err error) {
	var d Done
	if err := json.Unmarshal(body, &d); err != nil {
		return 0, fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	return d.Done, nil
}

package riverjobs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/memstore"
)

// renamed is a kind with an older name.
type renamed struct {
	Of string `json:"of"`
}

func (renamed) Kind() string          { return "renamed" }
func (renamed) KindAliases() []string { return []string{"older"} }

// wrong is a kind with a tag that cannot be.
type wrong struct {
	Of map[string]int `dibs:"key"`
}

func (wrong) Kind() string { return "wrong" }

// newStore returns a store in memory.
func newStore(t *testing.T) dibs.Store {
	t.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// newClient returns a client of a store in memory.
func newClient(t *testing.T) *dibs.Client {
	t.Helper()
	c, err := dibs.New(newStore(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// newMutex returns a Mutex on a store in memory.
func newMutex(t *testing.T) *Mutex {
	t.Helper()
	m, err := New(newClient(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestKey: a key is the same by the arguments and by what is stored of them, and kinds
// share keys where their functions return the same.
func TestKey(t *testing.T) {
	t.Parallel()
	m := newMutex(t)
	Tagged[job](m)
	Key(m, func(r renamed) string { return keyOf(r.Of) })
	for _, c := range []struct {
		kind string
		args river.JobArgs
	}{
		{"job", job{Of: "it"}}, {"job", &job{Of: "it"}}, {"job", nil},
		{"renamed", renamed{Of: "it"}}, {"older", nil},
	} {
		key, err := m.keys[c.kind](c.args, []byte(`{"of": "it"}`))
		if key != "of it" || err != nil {
			t.Errorf("the key of %s, %v, is %q, %v", c.kind, c.args, key, err)
		}
	}
	if _, err := m.keys["job"](nil, []byte("{")); err == nil {
		t.Error("arguments that cannot be read have a key")
	}
}

// TestKeyPanics: what is wrong is said before anything runs.
func TestKeyPanics(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		call func(*Mutex)
		want string
	}{
		{"told twice", func(m *Mutex) { Tagged[job](m); Tagged[job](m) }, "told of the kind \"job\" before"},
		{"no tag", Tagged[bare], "no field of riverjobs.bare has a tag"},
		{"wrong tag", Tagged[wrong], "cannot be part of a key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if said, _ := recover().(string); !strings.Contains(said, c.want) {
					t.Errorf("it panicked with %q, want %q", said, c.want)
				}
			}()
			c.call(newMutex(t))
		})
	}
}

// TestOptions: the error names the option that is wrong.
func TestOptions(t *testing.T) {
	t.Parallel()
	m := newMutex(t)
	c := newClient(t)
	tr := transactor{}
	for _, o := range []struct {
		o    Options
		want string
	}{
		{Options{Patience: -1}, "Options.Patience"},
		{Options{Transactor: tr}, "Options.Transactor and Tx"},
		{Options{Transactor: tr, Tx: noTx, Jobs: jobs.Options{Once: time.Hour}}, "Options.Transactor cannot be with Jobs.Once"},
		{Options{Jobs: jobs.Options{Permits: -1}}, "Options.Permits"},
	} {
		if _, err := New(c, &o.o); err == nil || !strings.Contains(err.Error(), o.want) {
			t.Errorf("New returned %v, want %s", err, o.want)
		}
	}
	if _, err := New(nil, nil); err == nil {
		t.Error("New takes no client")
	}
	if m.options.Patience != DefaultPatience || m.options.RetryPolicy == nil {
		t.Errorf("the defaults are %+v", m.options)
	}
}

// TestNote: a note travels in metadata beside what others have there, and replaces one
// that came with a copy.
func TestNote(t *testing.T) {
	t.Parallel()
	want := note{Key: "of it", Ticket: "t", Due: time.Unix(1, 0).UTC(), Try: 2}
	for _, metadata := range []string{"", "{}", `{"a": 1}`, `{"a": 1, "dibs": {"key": "another", "ticket": "copied"}}`} {
		text, err := writeNote([]byte(metadata), want)
		if err != nil {
			t.Fatal(err)
		}
		if got := readNote(text); got != want {
			t.Errorf("%s has the note %+v", text, got)
		}
		if strings.Contains(metadata, `"a"`) && !strings.Contains(string(text), `"a":1`) {
			t.Errorf("%s became %s", metadata, text)
		}
		if text, err = writeNote(text, note{}); err != nil || strings.Contains(string(text), "dibs") {
			t.Errorf("%s, %v has a note", text, err)
		}
	}
	for _, metadata := range []string{"", "null", "[]", `{"dibs": 7}`, `{"dibs": {"key": 7}}`} {
		if got := readNote([]byte(metadata)); got != (note{}) {
			t.Errorf("%s has the note %+v", metadata, got)
		}
	}
	if _, err := writeNote([]byte("[]"), want); err == nil {
		t.Error("a note was written into a list")
	}
}

// TestSchema: statements name River's table where it is.
func TestSchema(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{wakeSQL, dueSQL, lockSQL} {
		if text := in("", statement); strings.Contains(text, "@job") || !strings.Contains(text, " river_job") {
			t.Errorf("%s", text)
		}
		if text := in("own", statement); !slices.Contains(strings.Fields(text), "own.river_job") {
			t.Errorf("%s", text)
		}
	}
}

// transactor begins nothing.
type transactor struct{}

func (transactor) Begin(context.Context) (dibs.Transaction, error) { return nil, errors.New("none") }

func noTx(context.Context) (pgx.Tx, bool) { return nil, false }

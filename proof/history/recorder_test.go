package history

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// recorded returns a recorder over a store in memory, and what reads its history.
func recorded(t *testing.T, s store.Store, failed func(error)) (store.Store, func() []Event) {
	t.Helper()
	var m Memory
	w := m.Writer(3, 1)
	w.Now = func() time.Duration { return time.Duration(time.Now().UnixNano()) }
	return Record(s, w, failed), m.Events
}

func memory(t *testing.T) *memstore.Store {
	t.Helper()
	s, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestRecord: a client on a recorder gets what it would have got, and all that it asked
// and was answered is in the history.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, events := recorded(t, memory(t), nil)
		client, err := dibs.New(store, &dibs.Options{Namespace: "n", TTL: time.Second})
		testkit.Must(t, err)
		lease, err := client.Acquire(t.Context(), "k", nil)
		testkit.Must(t, err)
		token := Token(store, lease.ID())
		if len(token) != 32 || Token(store, "unknown") != "" || Token(memory(t), lease.ID()) != "" {
			t.Errorf("the token is %q", token)
		}
		waiter := make(chan *dibs.Lease)
		go func() {
			next, err := client.Acquire(t.Context(), "k", nil)
			testkit.Check(t, err)
			waiter <- next
		}()
		synctest.Wait()
		testkit.Check(t, lease.Save(t.Context(), []byte("half")))
		testkit.Check(t, lease.Complete(t.Context(), []byte("done"), time.Hour))
		if Token(store, lease.ID()) != "" {
			t.Error("a token is remembered that was settled")
		}
		next := <-waiter
		testkit.Check(t, next.Release())
		if _, err := client.TryAcquire(t.Context(), "k", &dibs.AcquireOptions{MaxAge: time.Hour}); !errors.Is(err, dibs.ErrDone) {
			t.Error(err)
		}
		testkit.Check(t, client.Close())

		got := events()
		for _, want := range []struct {
			what string
			is   func(*Event) bool
		}{
			{"a grant", func(e *Event) bool {
				return e.Kind == Claim && e.Mode == "queue" && e.State == "granted" && e.Token == token && e.Fence == lease.Fence() && e.Attempt == 1 && e.TTL == time.Second && e.Permits == 1
			}},
			{"a place", func(e *Event) bool { return e.Kind == Claim && e.State == "held" && e.Queued && e.Token != token }},
			{"a renewal", func(e *Event) bool {
				return e.Kind == Renew && e.Token == token && e.Error == "" && e.Data == Data([]byte("half"))
			}},
			{"a record", func(e *Event) bool {
				return e.Kind == Settle && e.Outcome == "keep" && e.Data == Data([]byte("done")) && e.Retention == time.Hour && e.Error == ""
			}},
			{"a replay", func(e *Event) bool {
				return e.Kind == Claim && e.State == "done" && e.Data == Data([]byte("done")) && e.MaxAge == time.Hour
			}},
		} {
			if n := slices.IndexFunc(got, func(e Event) bool { return want.is(&e) }); n < 0 {
				t.Errorf("%s is not in the history: %+v", want.what, got)
			}
		}
		for _, e := range got {
			if e.Process != 3 || e.Restarts != 1 || e.Key != "k" || e.Call == 0 || e.Return < e.Call {
				t.Errorf("not an event of it: %+v", e)
			}
		}
	})
}

// answering is a store with the answers of its fields.
type answering struct {
	store.Store
	whole   error // of every call
	element error // of every element
}

func (a *answering) Claim(_ context.Context, _ []store.Claim, answers []store.Answer) error {
	for i := range answers {
		answers[i].Err = a.element
	}
	return a.whole
}

func (a *answering) Renew(_ context.Context, _ []store.Renewal, errs []error) error {
	for i := range errs {
		errs[i] = a.element
	}
	return a.whole
}

func (a *answering) Settle(ctx context.Context, _ []store.Settlement, errs []error) error {
	return a.Renew(ctx, nil, errs)
}

// TestRecordErrors: what a store said in place of an answer is written down as what it
// means, and passed to the function that the caller gave for failures.
func TestRecordErrors(t *testing.T) {
	other := errors.New("hung up")
	for _, test := range []struct {
		name  string
		store answering
		want  string // the events' Error
	}{
		{"a call", answering{whole: other}, Unknown},
		{"lost", answering{element: store.ErrLost}, Lost},
		{"full", answering{element: store.ErrFull}, store.ErrFull.Error()},
		{"an element", answering{element: other}, Unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			var failed []error
			s, events := recorded(t, &test.store, func(err error) { failed = append(failed, err) })
			errs := []error{
				s.Claim(t.Context(), make([]store.Claim, 1), make([]store.Answer, 1)),
				s.Renew(t.Context(), make([]store.Renewal, 1), make([]error, 1)),
				s.Settle(t.Context(), make([]store.Settlement, 1), make([]error, 1)),
			}
			for _, err := range errs {
				if !errors.Is(err, test.store.whole) || err != nil && test.store.whole == nil {
					t.Errorf("a call returns %v", err)
				}
			}
			got := events()
			if len(got) != 3 || got[0].Error != test.want || got[1].Error != test.want || got[2].Error != test.want || len(failed) != 3 {
				t.Errorf("%d failures were passed on: %+v", len(failed), got)
			}
		})
	}
}

// TestRecordCanWhatTheStoreCan: a recorder wakes waiters as its store does, and is called
// as its store wants.
func TestRecordCanWhatTheStoreCan(t *testing.T) {
	s := memory(t)
	for _, test := range []struct {
		name   string
		store  store.Store
		notify bool
	}{
		{"it does not wake", &answering{}, false},
		{"it wakes", s, true},
	} {
		r, _ := recorded(t, test.store, nil)
		_, notify := r.(store.Notifier)
		if notify != test.notify {
			t.Errorf("%s: a Notifier %t", test.name, notify)
		}
		want := store.Batching{}
		if b, ok := test.store.(store.Batcher); ok {
			want = b.Batching()
		}
		if got := r.(store.Batcher).Batching(); got != want {
			t.Errorf("%s: it wants %+v, not %+v", test.name, got, want)
		}
	}
}

// pushing is a store that pushes grants.
type pushing struct {
	store.Store
	wake func(store.Token, store.Answer)
}

func (t *pushing) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	t.wake = wake
	return func() { t.wake = nil }
}

// TestPushed: a pushed grant is in the history before a client acts on it, even when it comes
// late. A wake-up without a grant is passed on, too.
func TestPushed(t *testing.T) {
	s := memory(t)
	from := &pushing{Store: s}
	under, events := recorded(t, from, nil)
	var woken []store.Token
	pushed := func() (n int) {
		for _, e := range events() {
			if e.Kind == Pushed {
				n++
			}
		}
		return n
	}
	stop := under.(store.Notifier).Notify(func(token store.Token, a store.Answer) {
		woken = append(woken, token)
		if a.State == store.Granted && !a.Queued && pushed() == 0 {
			t.Error("a grant is passed on before it is written down")
		}
	})
	key, token, stranger := store.Key{Name: "k"}, store.NewToken(), store.NewToken()
	claim := store.Claim{Key: key, Token: token, Mode: store.Queue, TTL: time.Second, PlaceTTL: time.Second, Permits: 1, Weight: 1, MaxAge: time.Minute}
	testkit.Must(t, under.Claim(t.Context(), []store.Claim{claim}, make([]store.Answer, 1)))
	grant := store.Answer{State: store.Granted, Fence: 7, Attempt: 2}
	from.wake(token, store.Answer{})
	if n := pushed(); n != 0 {
		t.Errorf("a wake-up is written down as a grant, %d times", n)
	}
	from.wake(token, grant)
	testkit.Must(t, under.Settle(t.Context(), []store.Settlement{{Key: key, Token: token}}, make([]error, 1)))
	from.wake(token, grant)
	from.wake(stranger, store.Answer{State: store.Granted, Queued: true})
	stop()
	if n := pushed(); n != 2 || !slices.Equal(woken, []store.Token{token, token, token, stranger}) || from.wake != nil {
		t.Errorf("%d grants are written down, and %v were woken", n, woken)
	}
	for _, e := range events() {
		if e.Kind == Pushed && (e.Key != "k" || e.Fence != 7 || e.Attempt != 2 || e.MaxAge != time.Minute || e.Call > e.Return) {
			t.Errorf("not as it was pushed: %+v", e)
		}
	}
}

// TestNotWritten: what cannot be written down is not asked.
func TestNotWritten(t *testing.T) {
	r := Record(&answering{}, NewWriter(full{}, 1, 0), nil)
	if err := r.Claim(t.Context(), make([]store.Claim, 1), make([]store.Answer, 1)); err == nil || !strings.Contains(err.Error(), "room") {
		t.Error(err)
	}
	tx := &transaction{nil, &transactor{w: NewWriter(full{}, 1, 0)}}
	if err := tx.Commit(t.Context(), store.Settlement{}); !errors.Is(err, store.ErrRolledBack) {
		t.Error(err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// ended is a transaction whose commit returns err.
type ended struct {
	store.Transaction
	err error
}

func (e *ended) Commit(context.Context, store.Settlement) error { return e.err }

// beginner begins it.
type beginner struct{ tx store.Transaction }

func (b *beginner) Begin(context.Context) (store.Transaction, error) { return b.tx, nil }

// TestRecordTransactor: a commit is written down as the settlement that it is, and the
// functions of stores find their own transaction.
func TestRecordTransactor(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{store.ErrLost, Lost},
		{store.ErrRolledBack, store.ErrRolledBack.Error()},
		{store.ErrTransactionEnded, store.ErrTransactionEnded.Error()},
		{errors.New("hung up"), Unknown},
	} {
		var lines bytes.Buffer
		inner := &ended{err: test.err}
		failed := 0
		tx, err := RecordTransactor(&beginner{inner}, NewWriter(&lines, 1, 0), func(error) { failed++ }).Begin(t.Context())
		testkit.Must(t, err)
		ctx := Inside(store.WithTransaction(t.Context(), tx))
		if store.TransactionFrom(ctx) != store.Transaction(inner) || Inside(ctx) != ctx {
			t.Error("the store's own transaction is not found")
		}
		err = tx.Commit(t.Context(), store.Settlement{Key: store.Key{Name: "k"}, Outcome: store.Keep, Data: []byte("x"), Retention: time.Hour})
		if !errors.Is(err, test.err) || (failed > 0) != (test.err != nil) {
			t.Errorf("it returned %v for %v, and passed on %d failures", err, test.err, failed)
		}
		events, err := Read(&lines)
		if err != nil || len(events) != 1 || events[0].Error != test.want || events[0].Kind != Settle || events[0].Name != "transaction" || events[0].Data != Data([]byte("x")) {
			t.Errorf("%v is written down as %+v, %v", test.err, events, err)
		}
	}
}

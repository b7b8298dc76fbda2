package idempotency

import (
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestWaitersGetTheirOriginal: a waiter gets what the run left that it waits for. A run whose lease was
// lost, and a waiter that passes on what it received, come too late for the run that followed.
func TestWaitersGetTheirOriginal(t *testing.T) {
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	run := func() *original {
		t.Helper()
		lease, err := client.Acquire(t.Context(), testkit.Own(), nil)
		testkit.Must(t, err)
		t.Cleanup(func() { _ = lease.Release() })
		return &original{lease: lease}
	}
	d := newDuplicates()
	old, next := run(), run()
	d.enter("k", old)
	d.enter("k", next)
	found, w := d.find("k", func(*original) bool { return true })
	if found != next || w == nil {
		t.Fatalf("a duplicate waits for %p; want %p", found, next)
	}
	nothing := func(when string) {
		t.Helper()
		select {
		case got := <-w:
			t.Fatalf("%s, the waiter gets %q", when, got.record)
		default:
		}
		if d.running["k"] != next || len(d.waiting["k"]) != 1 {
			t.Fatalf("%s, the key has the run %p and %d waiters", when, d.running["k"], len(d.waiting["k"]))
		}
	}
	d.leave("k", old, []byte("old"))
	nothing("when the old run ends with a record")
	d.leave("k", old, nil)
	nothing("when the old run ends without a record")
	d.pass("k", &original{record: []byte("passed on")})
	nothing("when a record is passed on")
	d.pass("k", noOriginal())
	nothing("when a turn is passed on")
	d.leave("k", next, []byte("new"))
	if got := testkit.Await(t, "the waiter's record", w); string(got.record) != "new" || got != next {
		t.Errorf("the waiter gets %q", got.record)
	}
	if len(d.running)+len(d.waiting) != 0 {
		t.Errorf("%d runs and %d waiters are left", len(d.running), len(d.waiting))
	}
}

// TestDefaultBounds: without any option all Middlewares of a process share its budget. One request always
// has room.
func TestDefaultBounds(t *testing.T) {
	process := memory.Process()
	for _, o := range []*Options{nil, {MaxConcurrent: 5}} {
		r := o.withDefaults(dibs.Options{})
		if r.shares() != process {
			t.Errorf("%+v has a budget of its own", o)
		}
	}
	most := process.Memory.Most()
	large := (&Options{MaxBody: 8 * most, maxMemory: 2 * most}).withDefaults(dibs.Options{})
	if s := large.shares(); s.Memory.Most() < 2*most || s.Files.Most() < 8*most {
		t.Errorf("one request has no room: %d bytes, and %d in files", s.Memory.Most(), s.Files.Most())
	}
	if n := (&Options{MaxBodyMemory: 1 << 30}).shares().Memory.Most(); n != 1<<30 {
		t.Errorf("the bound is %d", n)
	}
}

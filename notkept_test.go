package dibs_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/journal"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// panics is a result whose own method panics.
type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic("no") }

// cyclic is a result that contains itself.
type cyclic struct{ Self *cyclic }

// unstorable are results that no store takes.
var unstorable = map[string]any{
	"a NaN":     math.NaN(),
	"nested":    map[string]any{"rates": []float64{1, math.Inf(1)}},
	"a channel": make(chan int),
	"a panic":   panics{},
	"a cycle":   func() any { c := &cyclic{}; c.Self = c; return c }(),
	"too large": strings.Repeat("x", 2000),
}

// withLimit runs a test in a bubble, with a store whose records are 1,000 bytes at most.
func withLimit(t *testing.T, test func(t *testing.T, s *memstore.Store, c *dibs.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New(&memstore.Options{MaxBytes: 1000})
		testkit.Must(t, err)
		t.Cleanup(func() { testkit.Check(t, s.Close()) })
		test(t, s, newClient(t, s, nil))
	})
}

// TestOnceWhoseResultCannotBeStored: the effect happened, so no later caller runs until the retention
// is over or an operator has forgotten the key.
func TestOnceWhoseResultCannotBeStored(t *testing.T) {
	once := map[string]func(context.Context, *dibs.Client, string, *dibs.OnceOptions, func(context.Context) (any, error)) (any, error){
		"Once": dibs.Once[any], "TryOnce": dibs.TryOnce[any],
	}
	for what, result := range unstorable {
		for name, once := range once {
			for _, o := range []dibs.OnceOptions{{}, {AtMostOnce: true}, {Rerun: true}, {AtMostOnce: true, Rerun: true}} {
				withLimit(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
					runs := 0
					call := func() (any, error) {
						return once(t.Context(), c, "k", &o, func(context.Context) (any, error) { runs++; return result, nil })
					}
					got, err := call()
					keep, ok := errors.AsType[*dibs.KeepError](err)
					if !ok || keep.Rerun != o.Rerun || got == nil || strings.Contains(err.Error(), "runs again") != o.Rerun {
						t.Errorf("%s of %s, %+v: the first caller got %v, %v", name, what, o, got, err)
					}
					if o.Rerun {
						empty(t, s)
						_, _ = call()
						if runs != 2 {
							t.Errorf("%s of %s, %+v: it ran %d times, want 2", name, what, o, runs)
						}
						return
					}
					for range 2 {
						got, err = call()
						after, ok := errors.AsType[*dibs.UnrecordedError](err)
						if !ok || after.Why == "" || after.Key.Name != "k" || got != nil || runs != 1 {
							t.Fatalf("%s of %s, %+v: a later caller got %v, %v after %d runs", name, what, o, got, err, runs)
						}
						if text := err.Error(); !strings.Contains(text, "dibs resolve") || !strings.Contains(text, "dibs forget") || !strings.Contains(text, after.Why) {
							t.Errorf("the later caller is told %q", text)
						}
					}
					forgotten, err := s.Forget(t.Context(), dibs.Key{Name: "k"}, "")
					testkit.Must(t, err)
					_, _ = call()
					if !forgotten || runs != 2 {
						t.Errorf("%s of %s, %+v: after it was forgotten it ran %d times, want 2", name, what, o, runs)
					}
				})
			}
		}
	}
}

// TestNotKeptIsForgottenWithItsRetention: the note lasts as long as the result would have.
func TestNotKeptIsForgottenWithItsRetention(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		runs := 0
		call := func() {
			_, _ = dibs.Once(t.Context(), c, "k", &dibs.OnceOptions{Retention: time.Hour}, func(context.Context) (float64, error) { runs++; return math.NaN(), nil })
		}
		call()
		time.Sleep(time.Hour - time.Second)
		call()
		if runs != 1 {
			t.Errorf("within the retention it ran %d times", runs)
		}
		time.Sleep(time.Second)
		call()
		if runs != 2 {
			t.Errorf("after the retention it ran %d times, want 2", runs)
		}
	})
}

// TestNotKeptIsTheSameEverywhere: the clients of other languages read and write this record.
func TestNotKeptIsTheSameEverywhere(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		_, _ = dibs.Once(t.Context(), c, "k", nil, func(context.Context) (float64, error) { return math.NaN(), nil })
		_, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{MaxAge: dibs.AnyAge})
		done, ok := errors.AsType[*dibs.DoneError](err)
		if want := `{"not_kept":"json: unsupported value: NaN"}`; !ok || string(done.Record.Data) != want {
			t.Errorf("the record is %v, want %s", err, want)
		}
	})
}

// TestErrorThatCannotBeStored: a remembered error that is too large was an outcome, too.
func TestErrorThatCannotBeStored(t *testing.T) {
	withLimit(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		long, runs := errors.New(strings.Repeat("x", 2000)), 0
		for i := range 2 {
			_, err := dibs.Once(t.Context(), c, "k", &dibs.OnceOptions{Remember: func(error) bool { return true }},
				func(context.Context) (int, error) { runs++; return 0, long })
			_, noted := errors.AsType[*dibs.UnrecordedError](err)
			if errors.Is(err, long) != (i == 0) || noted != (i == 1) || runs != 1 {
				t.Errorf("call %d got %.80v after %d runs", i+1, err, runs)
			}
		}
	})
}

// TestRetentionIsCheckedBeforeTheRun: a retention that no store takes is found before fn runs.
func TestRetentionIsCheckedBeforeTheRun(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		_, err := dibs.Once(t.Context(), c, "k", &dibs.OnceOptions{Retention: time.Microsecond}, func(context.Context) (int, error) {
			t.Error("it ran")
			return 1, nil
		})
		if err == nil || !strings.Contains(err.Error(), "Retention") {
			t.Errorf("got %v", err)
		}
	})
}

// TestAtMostOnceWithoutAStore: a run whose result the store did not take is not free for the next
// one.
func TestAtMostOnceWithoutAStore(t *testing.T) {
	for name, fail := range map[string]func(*faulty){
		"no call arrives":   func(s *faulty) { s.set(func(string) error { return errCut }, nil) },
		"busy":              func(s *faulty) { s.set(failing("settle", dibs.ErrBusy), nil) },
		"full for the note": func(s *faulty) { s.set(failing("settle", dibs.ErrFull), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
				o := &dibs.OnceOptions{AtMostOnce: true}
				_, err := dibs.Once(t.Context(), c, "k", o, func(context.Context) (int, error) { fail(s); return 42, nil })
				if keep, ok := errors.AsType[*dibs.KeepError](err); !ok || keep.Rerun || errors.Is(err, dibs.ErrLost) {
					t.Errorf("the first caller got %v", err)
				}
				s.set(nil, nil)
				time.Sleep(time.Minute)
				_, err = dibs.Once(t.Context(), c, "k", o, func(context.Context) (int, error) { t.Error("it ran again"); return 0, nil })
				if !errors.Is(err, dibs.ErrUnknown) {
					t.Errorf("the next caller got %v", err)
				}
			})
		})
	}
}

// TestNestedKeepError: that fn returns the KeepError of another key says nothing of its own key.
func TestNestedKeepError(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		_, err := dibs.Once(t.Context(), c, "k", &dibs.OnceOptions{AtMostOnce: true}, func(context.Context) (int, error) {
			return 0, &dibs.KeepError{Err: errCut}
		})
		if !errors.Is(err, errCut) {
			t.Errorf("got %v", err)
		}
		empty(t, s)
	})
}

// TestOnceInWhoseResultCannotBeStored: nothing happened, and the next caller runs.
func TestOnceInWhoseResultCannotBeStored(t *testing.T) {
	for what, result := range unstorable {
		withLimit(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
			l := journal.New(s)
			for range 2 {
				got, err := dibs.OnceIn(t.Context(), c, l, "k", nil, func(ctx context.Context) (any, error) {
					journal.Write(ctx, "charged")
					return result, nil
				})
				_, keep := errors.AsType[*dibs.KeepError](err)
				if !errors.Is(err, dibs.ErrRolledBack) || errors.Is(err, dibs.ErrLost) || keep || got != nil {
					t.Errorf("%s: got %v, %v", what, got, err)
				}
			}
			empty(t, s)
			if rows := l.Rows(); len(rows) != 0 {
				t.Errorf("%s: %q was committed", what, rows)
			}
		})
	}
}

// TestResultOfAnotherType: a result that was stored as another type is an error, and a type that got
// or lost fields reads what was stored before.
func TestResultOfAnotherType(t *testing.T) {
	type receipt struct {
		ID    string
		Cents int
	}
	type grown struct {
		ID    string
		Cents int
		Tip   int
		Notes []string
	}
	type invoice struct {
		ID    string
		Total int
	}
	type person struct{ Name string }
	type order struct {
		Number int
		Lines  []receipt
	}
	type otherOrder struct {
		Number int
		Lines  []person
	}
	type optional struct {
		Name string `json:"name,omitempty"`
	}
	full := receipt{"r1", 100}
	for name, c := range map[string]struct {
		stored any
		read   func(*dibs.Client) (any, error)
		want   any // nil: an error
	}{
		"the same":                   {full, reading[receipt], full},
		"added fields":               {full, reading[grown], grown{ID: "r1", Cents: 100}},
		"lost fields":                {grown{"r1", 100, 5, nil}, reading[receipt], full},
		"a pointer":                  {full, reading[*receipt], &full},
		"any":                        {full, reading[map[string]int], nil},
		"a map":                      {map[string]int{"ID": 1}, reading[map[string]int], map[string]int{"ID": 1}},
		"nil":                        {nil, reading[*receipt], (*receipt)(nil)},
		"no fields for no fields":    {struct{}{}, reading[struct{}], struct{}{}},
		"nothing optional":           {optional{}, reading[optional], optional{}},
		"an optional that is empty":  {map[string]string{"name": ""}, reading[optional], optional{}},
		"other cases of letters":     {map[string]any{"id": "r1", "cents": 100}, reading[receipt], full},
		"a time":                     {time.Unix(0, 0).UTC(), reading[time.Time], time.Unix(0, 0).UTC()},
		"another struct":             {full, reading[person], nil},
		"a field in common":          {full, reading[invoice], nil},
		"null for a struct":          {nil, reading[receipt], nil},
		"null for a number":          {nil, reading[int], nil},
		"null for a text":            {nil, reading[string], nil},
		"null in a field":            {map[string]any{"ID": nil, "Cents": 1}, reading[receipt], nil},
		"no fields":                  {struct{}{}, reading[receipt], nil},
		"for no fields":              {full, reading[struct{}], nil},
		"an array for a longer one":  {[]int{1, 2}, reading[[3]int], nil},
		"an array for a shorter one": {[]int{1, 2}, reading[[1]int], nil},
		"elements of another struct": {[]receipt{full}, reading[[]person], nil},
		"values of another struct":   {map[string]receipt{"a": full}, reading[map[string]person], nil},
		"another struct inside":      {order{1, []receipt{full}}, reading[otherOrder], nil},
		"a text for a number":        {"17", reading[int], nil},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, _ *memstore.Store, client *dibs.Client) {
				_, err := dibs.Once(t.Context(), client, "k", nil, func(context.Context) (any, error) { return c.stored, nil })
				testkit.Must(t, err)
				got, err := c.read(client)
				if c.want == nil {
					if err == nil {
						t.Errorf("%+v was read as %#v", c.stored, got)
					}
					return
				}
				wrote, _ := json.Marshal(got)
				if want, _ := json.Marshal(c.want); err != nil || string(wrote) != string(want) {
					t.Errorf("got %s, %v, want %s", wrote, err, want)
				}
			})
		})
	}
}

// reading reads the result under the key k as a T.
func reading[T any](c *dibs.Client) (any, error) {
	return dibs.Once(context.Background(), c, "k", nil, func(context.Context) (T, error) { panic("it ran") })
}

// TestRecordOfAnotherProgram: a record that Once did not leave is an error.
func TestRecordOfAnotherProgram(t *testing.T) {
	for _, data := range []string{"", "17", `{}`, `{"dibs_run":1,"exit":0}`, "HTTP/1.1 200 OK\r\n\r\n"} {
		inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
			testkit.Must(t, acquire(t, c, "k", nil).Complete(t.Context(), []byte(data), time.Hour))
			if got, err := reading[*receipt](c); err == nil {
				t.Errorf("%q was read as %v", data, got)
			}
		})
	}
}

// TestStepOfAnotherType: what holds for a result of Once holds for that of a step.
func TestStepOfAnotherType(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		first := acquire(t, c, "k", nil)
		_, err := dibs.Step(first.Context(), "charge", func(context.Context) (receipt, error) { return receipt{"r1", 100}, nil })
		testkit.Must(t, err)
		testkit.Must(t, first.Abandon(t.Context()))
		next := acquire(t, c, "k", nil)
		defer release(t, next)
		if got, err := dibs.Step(next.Context(), "charge", func(context.Context) (struct{ Name string }, error) { panic("it ran") }); err == nil {
			t.Errorf("it was read as %+v", got)
		}
	})
}

package history_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/history"
)

// clock is a clock that ticks each time it is looked at.
func clock() func() time.Duration {
	var mu sync.Mutex
	now := time.Duration(0)
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		now += time.Millisecond
		return now
	}
}

// What was asked is in the file before the call leaves, what was answered joins it, and
// nothing is changed on the way.
func TestWhatIsWrittenIsRead(t *testing.T) {
	var file bytes.Buffer
	w := history.NewWriter(&file, 3, 2)
	w.Now = clock()
	calls := []history.Event{
		{Kind: history.Claim, Key: "k\x00\xc3\xa4\"", Token: "01", Mode: "queue", TTL: time.Second, PlaceTTL: 2 * time.Second, Grace: 3, From: "02",
			Permits: 4, Weight: 3, Fingerprint: "05", MaxAge: 1<<63 - 1, AtMostOnce: true},
		{Kind: history.Settle, Key: "k", Token: "01", Outcome: "keep", Data: `"kept"`, Retention: time.Hour},
		{Kind: history.Renew, Key: "k", Token: "03", TTL: time.Second},
	}
	testkit.Must(t, w.Call(calls))
	before := read(t, file.String())
	if len(before) != 3 || before[0].Call == 0 || before[0].Return != 0 || before[0].Answered() || before[1].Data != `"kept"` {
		t.Errorf("before the answers: %+v", before)
	}
	answered := slices.Clone(calls[:2])
	answered[0].State, answered[0].Fence, answered[0].Attempt, answered[0].Data = "granted", 1<<64-1, 7, `"record"`
	answered[0].Ahead, answered[0].Queued, answered[0].Left, answered[0].Text = 5, true, 6, "text"
	answered[1].Error = history.Lost
	testkit.Must(t, w.Return(answered))
	testkit.Must(t, w.Happened(history.Event{Kind: history.Enter, Key: "k", Fence: 8}, history.Event{Kind: history.Pushed, Key: "k", Call: 1}))
	events := read(t, file.String())
	if len(events) != 5 {
		t.Fatalf("%d events", len(events))
	}
	if pushed := events[0]; pushed.Kind != history.Pushed || pushed.Call != 1 || pushed.Return == 0 {
		t.Errorf("what began first is not first, or has not ended: %+v", pushed)
	}
	want := append(answered, calls[2])
	want[0].Process, want[0].Restarts, want[0].ID = 3, 2, 1
	if got := events[1:4]; !slices.Equal(got, want) {
		t.Errorf("read\n%+v, want\n%+v", got, want)
	}
	if e := events[1]; !e.Answered() || e.Return <= e.Call {
		t.Errorf("the answer came at %v, to what was called at %v", e.Return, e.Call)
	}
	if events[3].Answered() {
		t.Error("the renewal has no answer, and yet it is answered")
	}
}

func read(t *testing.T, file string) []history.Event {
	t.Helper()
	events, err := history.Read(strings.NewReader(file))
	testkit.Must(t, err)
	return events
}

// whole counts the writes, and whether each ended with a line.
type whole struct {
	mu     sync.Mutex
	writes int
	torn   bool
	bytes.Buffer
}

func (w *whole) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes++
	w.torn = w.torn || !bytes.HasSuffix(b, []byte("\n"))
	return w.Buffer.Write(b)
}

func TestEachCallIsOneWrite(t *testing.T) {
	var file whole
	w := history.NewWriter(&file, 1, 0)
	w.Now = clock()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				batch := make([]history.Event, 3)
				for i := range batch {
					batch[i] = history.Event{Kind: history.Renew, Key: "k", Token: "01"}
				}
				testkit.Check(t, errors.Join(w.Call(batch), w.Return(batch)))
			}
		})
	}
	all.Wait()
	if file.writes != 800 || file.torn {
		t.Errorf("%d writes, want 800; torn: %v", file.writes, file.torn)
	}
	events := read(t, file.String())
	seen := map[uint64]bool{}
	for _, e := range events {
		if !e.Answered() || e.Return <= e.Call || seen[e.ID] {
			t.Fatalf("%+v", e)
		}
		seen[e.ID] = true
	}
	if len(events) != 1200 {
		t.Errorf("%d events, want 1200", len(events))
	}
}

// Process 0 runs the workers, and writes events of theirs, not of its own.
func TestProcessZeroWritesOfOthers(t *testing.T) {
	var file bytes.Buffer
	w := history.NewWriter(&file, 0, 0)
	testkit.Must(t, w.Happened(history.Event{Kind: history.Killed, Process: 4, Restarts: 1, Call: 5, Return: 6}))
	if got := read(t, file.String())[0]; got.Process != 4 || got.Restarts != 1 || got.Call != 5 || got.Return != 6 {
		t.Errorf("%+v", got)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestWriterSaysWhatFailed(t *testing.T) {
	w := history.NewWriter(full{}, 6, 0)
	for verb, err := range map[string]error{
		"call":     w.Call(make([]history.Event, 1)),
		"return":   w.Return(make([]history.Event, 1)),
		"happened": w.Happened(history.Event{}),
	} {
		if err == nil || !strings.Contains(err.Error(), "process 6") || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

func TestRead(t *testing.T) {
	const (
		called   = `{"kind":"renew","process":1,"id":7,"call":20,"key":"k"}` + "\n"
		answered = `{"process":1,"id":7,"return":30,"error":"lost"}` + "\n"
		entered  = `{"kind":"enter","process":2,"call":10,"return":10}` + "\n"
	)
	long := `{"kind":"enter","call":5,"return":5,"text":"` + strings.Repeat("x", 1<<20) + `"}` + "\n"
	for _, c := range []struct {
		name  string
		files []string
		want  int    // how many events
		fails string // what the error says
	}{
		{"nothing", []string{""}, 0, ""},
		{"a call and its answer", []string{called + answered}, 1, ""},
		{"a call without an answer", []string{called}, 1, ""},
		{"a last line that was cut short", []string{called + answered[:20]}, 1, ""},
		{"a last line without its newline", []string{called + strings.TrimSpace(answered)}, 1, ""},
		{"two files", []string{called + answered, entered}, 2, ""},
		{"a very long line", []string{called + long + answered}, 2, ""},
		{"a line that was cut short in the middle", []string{called[:20] + "\n" + answered}, 0, "line 1 "},
		{"no line of a history", []string{called + "hello\n"}, 0, "line 2 "},
		{"an answer to nothing", []string{answered}, 0, "line 1 answers call 7 of process 1"},
		{"an answer in another file", []string{called, answered}, 0, "answers call 7"},
		{"two answers", []string{called + answered + answered}, 0, "line 3 answers"},
		{"two calls", []string{called + called}, 0, "line 2 calls 7 of process 1 a second time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var names []string
			for i, f := range c.files {
				names = append(names, filepath.Join(t.TempDir(), fmt.Sprint(i)))
				testkit.Must(t, os.WriteFile(names[i], []byte(f), 0o600))
			}
			events, err := history.ReadFiles(names...)
			switch {
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("error %v, want one with %q", err, c.fails)
			case c.fails == "" && err != nil:
				t.Error(err)
			case len(events) != c.want:
				t.Errorf("%d events, want %d", len(events), c.want)
			case !slices.IsSortedFunc(events, func(a, b history.Event) int { return int(a.Call - b.Call) }):
				t.Error("they are not sorted")
			}
		})
	}
	if _, err := history.ReadFiles(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestDataTellsRecordsApart(t *testing.T) {
	seen := map[string]string{}
	for _, record := range []string{"", "a", "b", `"a"`, "\xff", "\xfe", "�", strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("a", 66)} {
		d := history.Data([]byte(record))
		if other, ok := seen[d]; ok {
			t.Errorf("%q and %q are both spelled %s", record, other, d)
		}
		if d == "" || len(d) > 80 {
			t.Errorf("%q is spelled %q", record, d)
		}
		seen[d] = record
	}
}

// Whatever is in a file, reading it does no harm, and what is understood is in order.
func FuzzRead(f *testing.F) {
	f.Add(`{"kind":"renew","process":1,"id":7,"call":20}` + "\n" + `{"process":1,"id":7,"return":30}` + "\n")
	f.Add(`{"kind":"enter","call":5}` + "\n" + `{"kind":"enter","call":4}` + "\n{")
	f.Fuzz(func(t *testing.T, file string) {
		events, err := history.Read(strings.NewReader(file))
		if err != nil && events != nil {
			t.Errorf("events and an error: %v", err)
		}
		for i, e := range events {
			if e.Kind == "" || i > 0 && e.Call < events[i-1].Call {
				t.Errorf("event %d of %+v", i, events)
			}
		}
	})
}

package progress

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestLine: the line changes in its place, other output stands above it, and a long text does not wrap.
func TestLine(t *testing.T) {
	var b strings.Builder
	l := &Line{w: &b, on: true}
	l.Show("1 of 3")
	l.Show("1 of 3")
	_, err := io.WriteString(l, "a fault\n")
	testkit.Must(t, err)
	l.Show("2 of 3")
	l.Show("")
	_, err = io.WriteString(l, "done\n")
	testkit.Must(t, err)
	if want := erase + "1 of 3" + erase + "a fault\n1 of 3" + erase + "2 of 3" + erase + "done\n"; b.String() != want {
		t.Errorf("the terminal gets %q; want %q", b.String(), want)
	}
	b.Reset()
	l.Show(strings.Repeat("é", 200))
	if got := strings.TrimPrefix(b.String(), erase); len([]rune(got)) != width || !strings.HasSuffix(got, "é…") {
		t.Errorf("a long text is %q", got)
	}
}

// TestNoLine: what is not a terminal gets no line.
func TestNoLine(t *testing.T) {
	r, w, err := os.Pipe()
	testkit.Must(t, err)
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	testkit.Must(t, err)
	defer null.Close()
	var b strings.Builder
	for name, stream := range map[string]io.Writer{"a pipe": w, os.DevNull: null, "a buffer": &b} {
		if New(stream, func(string) string { return "" }).On() {
			t.Errorf("%s has a line", name)
		}
	}
	l := New(w, os.Getenv)
	l.Show("1 of 3")
	_, err = io.WriteString(l, "done\n")
	testkit.Must(t, err)
	testkit.Must(t, w.Close())
	if got, err := io.ReadAll(r); err != nil || string(got) != "done\n" {
		t.Errorf("the pipe got %q, %v", got, err)
	}
}

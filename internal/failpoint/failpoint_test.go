package failpoint_test

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/dibs-go/dibs/internal/failpoint"
)

func TestMain(m *testing.M) {
	if os.Getenv("FAILPOINT_CHILD") == "" {
		os.Exit(m.Run())
	}
	os.Stdout.WriteString("a")
	failpoint.Reach("first")
	os.Stdout.WriteString("b")
	failpoint.Reach("second")
	os.Stdout.WriteString("c")
}

// run starts a child, kills it at the point, and returns what it did by then.
func run(t *testing.T, point string) string {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FAILPOINT_CHILD=1")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	c := failpoint.Start(t, point, cmd)
	w.Close()
	if point == "" {
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
	} else {
		c.Await()
		c.Kill()
	}
	said, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(said)
}

// TestKilledAtThePoint: a child does what comes before its point and nothing after it,
// and all of it when it has none.
func TestKilledAtThePoint(t *testing.T) {
	for point, want := range map[string]string{"first": "a", "second": "ab", "": "abc"} {
		if got := run(t, point); got != want {
			t.Errorf("at %q the child had done %q, want %q", point, got, want)
		}
	}
}

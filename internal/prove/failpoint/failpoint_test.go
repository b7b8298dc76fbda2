package failpoint_test

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, testkit.Children{
		"stops": func([]string) error {
			fmt.Println("a")
			failpoint.Reach("first")
			fmt.Println("b")
			failpoint.Reach("second")
			fmt.Println("c")
			return nil
		},
		"listens": func(args []string) error {
			fmt.Println("ready", args)
			_, err := io.Copy(io.Discard, os.Stdin)
			fmt.Println("ended")
			return err
		},
	})
}

// TestKilledAtThePoint: a child does what comes before its point and nothing after it,
// and all of it when it has none.
func TestKilledAtThePoint(t *testing.T) {
	for point, want := range map[string]string{"first": "a\n", "second": "a\nb\n", "": "a\nb\nc\n"} {
		cmd := testkit.Child("stops")
		r, w, err := os.Pipe()
		testkit.Must(t, err)
		defer r.Close()
		cmd.Stdout = w
		c := failpoint.Start(t, point, cmd)
		w.Close()
		if point == "" {
			c.End()
		} else {
			c.Await()
			c.Kill()
		}
		did, err := io.ReadAll(r)
		testkit.Must(t, err)
		if string(did) != want {
			t.Errorf("at %q the child had done %q, want %q", point, did, want)
		}
	}
}

// TestEnds: a child is heard while it runs, and ends when its input does.
func TestEnds(t *testing.T) {
	c := failpoint.Start(t, "", testkit.Child("listens", "a", "b\nc"))
	for _, want := range []string{"ready [a b", "c]"} {
		if got := c.Says(); got != want {
			t.Errorf("the child said %q, want %q", got, want)
		}
	}
	c.End()
	if got := c.Says(); got != "ended" {
		t.Errorf("the child said %q at its end", got)
	}
}

package testkit

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	Main(m, Children{
		"fails": func(args []string) error { return errors.New(strings.Join(args, " ")) },
		"asks": func([]string) error {
			if name, ok := os.LookupEnv(childVar); ok {
				return errors.New("what it starts would be a child, too: " + name)
			}
			return nil
		},
	})
}

// TestChild: a child gets its arguments, and its end tells what came of it.
func TestChild(t *testing.T) {
	for _, test := range []struct {
		child string
		code  int
		said  string
	}{
		{"fails", 1, "a b\n"},
		{"asks", 0, ""},
		{"none", 2, "testkit: no child is named \"none\": give it to Main\n"},
	} {
		cmd := Child(test.child, "a", "b")
		said, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != test.code || string(said) != test.said {
			t.Errorf("child %s exited with %d and said %q, want %d and %q", test.child, code, said, test.code, test.said)
		}
	}
}

// ended is a test that notes how it ended.
type ended struct {
	testing.TB
	said []any
}

func (e *ended) Helper()           {}
func (e *ended) Fatal(args ...any) { e.said = append(e.said, "ended", args[0]) }
func (e *ended) Error(args ...any) { e.said = append(e.said, "failed", args[0]) }

// TestMust: an error ends or fails the test with the error's text, and nothing else does.
func TestMust(t *testing.T) {
	e, err := &ended{}, errors.New("broken")
	Must(e, nil)
	Check(e, nil)
	if e.said != nil {
		t.Errorf("without an error: %v", e.said)
	}
	Check(e, err)
	Must(e, err)
	if want := []any{"failed", err, "ended", err}; !slices.Equal(e.said, want) {
		t.Errorf("with an error: %v, want %v", e.said, want)
	}
}

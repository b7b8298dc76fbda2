package sqlitestore

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	lite := house.Root + "/stores/sqlitestore/internal/lite"
	house.Check(t, []house.Room{
		{
			Dir:     ".",
			Imports: []string{house.Root, house.Root + "/store", house.Root + "/store/storekit", house.Root + "/store/engine", house.Root + "/store/remote", house.Root + "/internal/errtype", house.Root + "/internal/backoff", lite, "golang.org/x/sys/unix", "modernc.org/sqlite"},
			Tests:   []string{house.Root + "/idempotency", house.Root + "/store/storetest", house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house"},
		},
		{Dir: "internal/lite", Imports: []string{"modernc.org/sqlite/lib", "modernc.org/libc/..."}},
	})
}

// children use the file in their first argument. They end when their standard input does.
var children = testkit.Children{
	"open":  childOpen,
	"calls": childCalls,
	"book":  childBook,
}

func TestMain(m *testing.M) { testkit.Main(m, children) }

// childOpen opens the store, and says what came of it.
func childOpen(args []string) error {
	s, err := Open(args[0], &Options{LockWait: testkit.Limit})
	if err != nil {
		return err
	}
	c := lock("child " + strconv.Itoa(os.Getpid()))
	answers := make([]store.Answer, 1)
	if err := s.Claim(context.Background(), []store.Claim{c}, answers); err != nil {
		return err
	}
	if answers[0].State != store.Granted {
		return fmt.Errorf("the claim was answered %+v", answers[0])
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Close()
}

// Processes that make the same new file at once all get it.
func TestProcessesOpenANewFile(t *testing.T) { openANewFile(t, 3) }

// openANewFile lets several processes create a file.
func openANewFile(t *testing.T, n int) {
	t.Helper()
	path := testFile(t)
	var processes []*failpoint.Child
	for range n {
		processes = append(processes, failpoint.Start(t, "", testkit.Child("open", path)))
	}
	for _, p := range processes {
		p.End()
	}
	s := openTest(t, path, nil, hostClock)
	claims := 0
	for e, err := range s.List(t.Context(), store.Query{}) {
		testkit.Must(t, err)
		if !strings.HasPrefix(e.Key.Name, "child ") {
			t.Errorf("the file has %+v", e)
		}
		claims++
	}
	if claims != n {
		t.Errorf("the file has the claims of %d processes, not %d", claims, n)
	}
}

// copyBinary puts this test binary where every user can run it.
func copyBinary(t *testing.T, folder string) string {
	t.Helper()
	data := testkit.ReadFile(t, os.Args[0])
	path := filepath.Join(folder, "child")
	testkit.Must(t, os.WriteFile(path, data, 0o755))
	return path
}

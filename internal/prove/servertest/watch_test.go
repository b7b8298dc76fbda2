//go:build unix

package servertest

import (
	"os/exec"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// sleeper starts a process that does nothing.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd
}

func TestWatch(t *testing.T) {
	t.Parallel()
	first, second := sleeper(t), sleeper(t)
	w, err := watchOver([]int{first.Process.Pid, second.Process.Pid})
	testkit.Must(t, err)
	w.end()
	if ended(first.Process.Pid) || ended(second.Process.Pid) {
		t.Error("the end of a watch ended what it was over")
	}
	if w, err = watchOver([]int{first.Process.Pid, second.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	w.pipe.Close() // as our end does
	for _, cmd := range []*exec.Cmd{first, second} {
		if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("ended by %v", err)
		}
	}
	if err := w.shell.Wait(); err != nil {
		t.Errorf("the watch: %v", err)
	}
	(*watch)(nil).end() // none does nothing
}

//go:build nightly && linux

package fault_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/proof/fault"
)

// The fault that takes away the rights to a file does nothing to root, so as root this test
// runs itself as nobody.
func TestPermissions(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "dibs-fault-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if os.Geteuid() == 0 {
		const nobody = 65534
		binary := filepath.Join(folder, "test")
		if err := copySelf(binary); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), binary, "-test.run=^TestPermissions$", "-test.v")
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "TMPDIR=/tmp")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("as nobody: %v\n%s", err, out)
		}
		return
	}

	target := &fault.Target{URL: "sqlite:" + filepath.Join(folder, "dibs.db"), TTL: ttl}
	target.Workers = newIdlers(t)
	apply, absent, err := fault.Select(target, "permissions")
	if err != nil || len(apply) != 1 {
		t.Fatal(absent, err)
	}
	r := rand.New(rand.NewPCG(7, 8))
	if hits, err := apply[0].Strike(t.Context(), target, r); err != nil || hits != 0 {
		t.Errorf("it has hit %d times (%v) where nobody opens the file", hits, err)
	}
	c := newCrew(t, target, 2)
	hits := 0
	for n := 0; n < 12 && hits == 0; n++ { // a worker may begin too late to notice
		more, err := apply[0].Strike(t.Context(), target, r)
		if err != nil {
			t.Fatal(err)
		}
		hits += more
	}
	if hits == 0 {
		t.Error("it has never hit")
	}
	c.awaitProgress("with the rights back")
}

// copySelf copies the test's program, in a process of its own: while this one writes, others
// that it starts have the file open too, and nobody can start what somebody may write to.
func copySelf(to string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if out, err := exec.Command("cp", self, to).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

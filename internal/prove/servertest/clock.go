//go:build unix

package servertest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

//go:embed preload/clock.c
var clockSource string

// A Clock is the time of day of the servers that were started with it. It is correct
// until Step changes it. Monotonic clocks are not changed. It needs a C compiler, and
// Linux.
type Clock struct {
	folder *folder
	file   *os.File
}

// NewClock returns a correct clock. It ends with its owner.
func NewClock(owner Owner) *Clock {
	owner.Helper()
	c := &Clock{}
	if err := c.make(owner); err != nil {
		owner.Fatalf("cannot make a clock for servers: %v", err)
	}
	return c
}

func (c *Clock) make(owner Owner) (err error) {
	if runtime.GOOS != "linux" {
		return errors.New("it works on Linux only")
	}
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return errors.New("there is no C compiler: install one (on Debian: apt-get install gcc libc6-dev)")
	}
	if c.folder, err = newFolder(nil); err != nil {
		return err
	}
	owner.Cleanup(func() {
		if err := c.folder.remove(); err != nil {
			owner.Logf("removing the clock of servers: %v", err)
		}
	})
	// The servers may run as another user.
	if err := os.Chmod(c.folder.path, 0o711); err != nil {
		return err
	}
	cmd := exec.Command(compiler, "-shared", "-fPIC", "-O2", "-o", c.folder.join("clock.so"), "-x", "c", "-")
	cmd.Stdin = strings.NewReader(clockSource)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling: %w\n%s", err, out)
	}
	if c.file, err = os.OpenFile(c.folder.join("ahead"), os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return err
	}
	owner.Cleanup(func() { c.file.Close() })
	for _, name := range []string{"clock.so", "ahead"} {
		if err := os.Chmod(c.folder.join(name), 0o644); err != nil { // despite the umask
			return err
		}
	}
	return c.Step(0)
}

// Step sets how many whole seconds the clock is ahead of the true time; negative: behind.
// The servers see it at once.
func (c *Clock) Step(ahead time.Duration) error {
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second))), 0)
	return err
}

// env is the environment of a server with the clock; nil for a nil clock.
func (c *Clock) env() []string {
	if c == nil {
		return nil
	}
	return []string{"LD_PRELOAD=" + c.folder.join("clock.so"), "DIBS_CLOCK=" + c.folder.join("ahead")}
}

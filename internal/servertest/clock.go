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

// A Clock is the time of day that servers see which were started with it: the true one,
// until it is stepped. Monotonic clocks are not touched, as with a clock that somebody
// sets. It needs a C compiler, and Linux.
type Clock struct {
	folder *folder
	file   *os.File
}

// NewClock returns a clock that is right. It ends with its owner.
func NewClock(owner Owner) *Clock {
	owner.Helper()
	c := &Clock{}
	if err := c.make(owner); err != nil {
		owner.Fatalf("making a clock for servers: %v", err)
	}
	return c
}

func (c *Clock) make(owner Owner) (err error) {
	if runtime.GOOS != "linux" {
		return errors.New("it can be done on Linux only")
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
	// The servers run as others than we do.
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
		if err := os.Chmod(c.folder.join(name), 0o644); err != nil { // whatever the umask
			return err
		}
	}
	return c.Step(0)
}

// Step sets how far the clock is ahead of the true time, or behind it if that is negative,
// in whole seconds. The servers see it at once.
func (c *Clock) Step(ahead time.Duration) error {
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second))), 0)
	return err
}

// env is what a server is to have in its environment to see the clock; nothing for nil.
func (c *Clock) env() []string {
	if c == nil {
		return nil
	}
	return []string{"LD_PRELOAD=" + c.folder.join("clock.so"), "DIBS_CLOCK=" + c.folder.join("ahead")}
}

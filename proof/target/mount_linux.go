package target

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mount puts a filesystem of 64 MiB in memory over the folder.
func mount(folder string) (unmount func() error, err error) {
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "size=64m"); err != nil {
		return nil, fmt.Errorf("mounting one needs root: %w", err)
	}
	// Open files there stay usable until they are closed.
	return func() error { return unix.Unmount(folder, unix.MNT_DETACH) }, nil
}

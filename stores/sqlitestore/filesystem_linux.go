package sqlitestore

import (
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// filesystems are those that Check reports, by their magic numbers.
var filesystems = map[uint32]filesystem{
	unix.NFS_SUPER_MAGIC:       {name: "NFS", trait: network},
	unix.SMB_SUPER_MAGIC:       {name: "SMB", trait: network},
	unix.SMB2_SUPER_MAGIC:      {name: "SMB", trait: network},
	unix.CIFS_SUPER_MAGIC:      {name: "CIFS", trait: network},
	unix.AFS_SUPER_MAGIC:       {name: "AFS", trait: network},
	unix.AFS_FS_MAGIC:          {name: "AFS", trait: network},
	unix.CODA_SUPER_MAGIC:      {name: "Coda", trait: network},
	unix.CEPH_SUPER_MAGIC:      {name: "Ceph", trait: network},
	unix.OCFS2_SUPER_MAGIC:     {name: "OCFS2", trait: network},
	unix.V9FS_MAGIC:            {name: "9P", trait: network},
	0x01161970:                 {name: "GFS2", trait: network},
	0x0bd00bd0:                 {name: "Lustre", trait: network},
	0x47504653:                 {name: "GPFS", trait: network},
	0x19830326:                 {name: "BeeGFS", trait: network},
	unix.TMPFS_MAGIC:           {name: "tmpfs", trait: inMemory},
	unix.RAMFS_MAGIC:           {name: "ramfs", trait: inMemory},
	unix.OVERLAYFS_SUPER_MAGIC: {name: "overlayfs", trait: container},
	unix.FUSE_SUPER_MAGIC:      {name: "FUSE", trait: userspace},
}

// filesystemOf describes the filesystem of a file.
func filesystemOf(path string) filesystem {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return filesystem{}
	}
	fs, special := filesystems[uint32(st.Type)]
	if !special {
		fs.name = "a local disk"
	}
	fs.free = math.MaxInt64
	if block := uint64(st.Bsize); block > 0 && st.Bavail < math.MaxInt64/block { //nolint:gosec // it is not negative
		fs.free = int64(st.Bavail * block) //nolint:gosec // it fits
	}
	return fs
}

// isMountPoint reports whether a file was mounted without its folder.
func isMountPoint(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// clockFacts returns the kernel's clock source, and whether this process has its own time
// since boot.
func clockFacts() (source string, own bool) {
	// A file that cannot be read does not exist on this kernel.
	text, _ := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	offsets, _ := os.ReadFile("/proc/self/timens_offsets")
	return strings.TrimSpace(string(text)), hasOffset(string(offsets))
}

// hasOffset reads lines such as "boottime 864000 0".
func hasOffset(lines string) bool {
	for line := range strings.Lines(lines) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "boottime" && (f[1] != "0" || f[2] != "0") {
			return true
		}
	}
	return false
}

package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// Names of Findings.
const (
	findFolder     = "folder"
	findFilesystem = "filesystem"
	findMount      = "mount"
	findReadable   = "readable"
	findTurn       = "turn"
	findReadOnly   = "read-only"
	findDamage     = "damage"
	findDurability = "durability"
	findSpace      = "space"
	findBloat      = "bloat"
	findLog        = "log"
	findClock      = "clock"
)

const (
	// checkLimit bounds the search for damage.
	checkLimit = 5 * time.Second
	// littleSpace is the free space below which Check warns. The log alone grows to
	// 16 MiB, and briefly beyond.
	littleSpace = 128 << 20
	// largeLog is the size of a log that a reader keeps from being checkpointed.
	largeLog = 128 << 20
	// muchFree is the size of free pages above which Check warns.
	muchFree = 64 << 20
)

var _ store.Checker = (*Store)(nil)

// Check implements store.Checker. It reads the whole file for damage, for at most 5 s, and
// blocks no call meanwhile.
//
// The names of its findings: filesystem, mount, readable, turn, read-only, damage,
// durability, space, bloat, log, clock, folder. The last one is CheckPlace's.
func (s *Store) Check(ctx context.Context) ([]store.Finding, error) {
	f, err := s.facts(ctx, checkLimit)
	if err != nil {
		return nil, err
	}
	return f.findings(), nil
}

// CheckPlace finds what is wrong with the place of a file that Open has not made yet: its folder, the
// filesystem and the clock. It makes nothing. The names of its findings are folder, and those of Check.
func CheckPlace(path string) []store.Finding {
	var c storekit.Checkup
	n, err := resolve(path)
	if err != nil {
		c.Danger(true, findFolder, fmt.Sprintf("The file cannot be made: %v.", err), "Make the folder for the user of the programs, or name another one.")
		return c.Findings()
	}
	folder := filepath.Dir(n.full)
	c.Danger(errors.Is(writable(folder), ErrReadOnly), findFolder,
		fmt.Sprintf("This user may make no file in %s.", folder), "Give the folder to the user of the programs, or name another one.")
	f := &facts{filesystem: filesystemOf(folder)}
	f.clockSource, f.ownTime = clockFacts()
	checkFilesystem(&c, f.filesystem)
	f.checkTime(&c)
	return c.Findings()
}

// facts are the measurements of Check.
type facts struct {
	filesystem  filesystem
	mounted     bool     // the file is a mount point of its own
	readable    []string // the files that every user of the host may read
	turn        string   // what is wrong with the queue of writers
	writable    error
	damage      string // "": none found
	incomplete  bool   // not all of the file was read
	journal     string
	synchronous int64
	size, free  int64 // the file, and its free pages; bytes
	log         int64 // bytes
	fence       int64
	wall        int64
	clockSource string // "": unknown
	ownTime     bool   // the process has its own time since boot
	shared      bool   // Options.Shared
}

// filesystem describes the filesystem of a file.
type filesystem struct {
	name  string // "": unknown
	trait trait
	free  int64 // bytes that this user may write
}

// trait is what matters about a filesystem.
type trait uint8

const (
	local     trait = iota
	network         // shared with other hosts
	inMemory        // lost when the host reboots
	container       // lost with the container
	userspace       // served by a program
)

func (s *Store) facts(ctx context.Context, limit time.Duration) (*facts, error) {
	f := &facts{writable: writable(s.names.full), wall: s.clock.wall(), shared: s.opt.Shared}
	f.clockSource, f.ownTime = clockFacts()
	f.filesystem = filesystemOf(s.names.full)
	f.mounted = isMountPoint(s.names.full)
	for i, suffix := range suffixes {
		info, err := os.Stat(s.names.full + suffix)
		if err == nil && readable(info) {
			f.readable = append(f.readable, s.names.full+suffix)
		}
		if err == nil && i == 1 {
			f.log = info.Size()
		}
	}
	// On the writing connection, which also checks that it can lock the file, and that
	// the file was not moved.
	if err := s.work(ctx, func(tx *transaction) {
		f.fence, f.turn = tx.fence, s.writeQueue.trouble()
		f.synchronous, tx.err = s.conn.Query("PRAGMA synchronous")
	}); err != nil {
		return nil, err
	}
	conn, err := lite.Open(s.names.full, lite.ReadWrite)
	if err != nil {
		return nil, fault(s.path, err)
	}
	defer conn.Close()
	if err := f.read(conn); err != nil {
		return nil, fault(s.path, err)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, sql := range s.checks() {
		if err := f.checkDamage(limited, conn, sql); err != nil {
			return nil, fault(s.path, err)
		}
	}
	return f, ctx.Err()
}

// read reads the settings of the file.
func (f *facts) read(conn *lite.Conn) (err error) {
	var pageSize int64
	for _, q := range []struct {
		n   *int64
		sql string
	}{{&pageSize, "PRAGMA page_size"}, {&f.size, "PRAGMA page_count"}, {&f.free, "PRAGMA freelist_count"}} {
		if *q.n, err = conn.Query(q.sql); err != nil {
			return err
		}
	}
	f.size *= pageSize
	f.free *= pageSize
	f.journal, err = conn.QueryText("PRAGMA journal_mode")
	return err
}

// checkDamage looks for damage with a statement that returns "ok" for a sound file.
func (f *facts) checkDamage(ctx context.Context, conn *lite.Conn, sql string) error {
	if ctx.Err() != nil { // a small file would be read before the interrupt
		f.incomplete = true
		return nil
	}
	answer, err := conn.QueryTextUntil(ctx.Done(), sql)
	switch {
	case isCode(err, lite.Interrupted):
		f.incomplete = true
	case isCode(err, lite.Corrupt, lite.NotADB):
		f.damage = err.Error()
	case err != nil:
		return err
	case answer != "ok":
		f.damage = answer
	}
	return nil
}

// findings returns the findings, the worst first.
func (f *facts) findings() []store.Finding {
	c := storekit.Checkup{}
	f.checkFile(&c)
	f.checkAccess(&c)
	checkFilesystem(&c, f.filesystem)
	f.checkTime(&c)
	return c.Findings()
}

func (f *facts) checkFile(c *storekit.Checkup) {
	c.Danger(f.damage != "", findDamage,
		"The file is damaged: "+strings.Join(strings.Fields(f.damage), " ")+".", sentence(cures[ErrDamaged]))
	c.Unchecked(f.incomplete, findDamage,
		fmt.Sprintf("The file has %s; it takes too long to read all of it for damage.", bytesText(f.size)),
		"When the load is low, run PRAGMA quick_check in a sqlite3 shell.")
	c.Danger(errors.Is(f.writable, ErrReadOnly), findReadOnly,
		"This user may no longer write the file: programs that have it open continue, but no program can open it again.", sentence(cures[ErrReadOnly]))
	c.Danger(f.journal != "wal", findDurability,
		fmt.Sprintf("The journal mode was changed to %s: readers and writers block each other.", f.journal),
		"Restart the programs that use the file; they set the mode to wal.")
	const full = 2
	c.Danger(f.synchronous < full, findDurability,
		"Grants and records are not synchronized to the disk: they are lost when the machine fails.",
		"Restart this program, and remove what sets PRAGMA synchronous.")
	c.Advice(!f.shared && f.free > muchFree && f.free > f.size/2, findBloat,
		fmt.Sprintf("%s of the file's %s are free.", bytesText(f.free), bytesText(f.size)),
		"Run dibs prune, or call Prune, to give the space back.")
	c.Advice(f.log > largeLog, findLog,
		fmt.Sprintf("The file's log has %s: an endless read transaction keeps SQLite from moving the log into the file.", bytesText(f.log)),
		"Find the program that has a transaction open on the file, such as a shell or a backup.")
}

func (f *facts) checkAccess(c *storekit.Checkup) {
	c.Danger(f.mounted, findMount,
		"The file is a mount point of its own, so its log is in another folder than that of other containers: each has its own log, and a key may be held twice.",
		"Mount the folder of the file, not the file alone.")
	c.Advice(len(f.readable) > 0, findReadable,
		fmt.Sprintf("Every user of this host may read %s and the stored answers in it.", strings.Join(f.readable, " and ")),
		"Run chmod o-rwx on the files, or keep them in a folder that other users cannot enter.")
	c.Advice(f.turn != "", findTurn,
		fmt.Sprintf("Programs that write do not queue, so some may wait longer than others: %s.", f.turn),
		"Remove what is in the place of the store's file with "+writeQueueSuffix+" at its end, give it to the user of the store's file, or end the program that has it locked (fuser names it).")
}

func checkFilesystem(c *storekit.Checkup, fs filesystem) {
	const move = "Move the file to a local disk, or use a database server."
	switch fs.trait {
	case local:
	case network:
		c.Danger(true, findFilesystem,
			fmt.Sprintf("The file is on %s, a network filesystem: its locks and shared memory do not work between hosts, and a key may be held twice.", fs.name), move)
	case inMemory:
		c.Danger(true, findFilesystem,
			fmt.Sprintf("The file is on %s, in memory: a restart of the host loses all records, and their work runs again.", fs.name), move)
	case container:
		c.Advice(true, findFilesystem,
			fmt.Sprintf("The file is on %s: in a container it is lost with the container, and other containers do not share it.", fs.name),
			"In a container, put the file on a volume of the host's disk.")
	case userspace:
		c.Advice(true, findFilesystem,
			fmt.Sprintf("The file is on %s, which a program serves: whether locks work depends on that program.", fs.name), move)
	}
	switch {
	case fs.name == "":
		c.Unchecked(true, findFilesystem, "This system does not tell the filesystem of the file.",
			"Make sure that it is a local disk with free space.")
	case fs.free < littleSpace:
		c.Advice(true, findSpace,
			fmt.Sprintf("The filesystem has %s left. When it is full, claims are refused.", bytesText(fs.free)), "Free some space.")
	}
}

func (f *facts) checkTime(c *storekit.Checkup) {
	c.Danger(f.ownTime, findClock,
		"This process is in a time namespace: its time since boot differs from that of other processes, so leases end too early or too late.",
		"Run all programs that use the file in the same time namespace.")
	c.Advice(strings.Contains(f.clockSource, "jiffies"), findClock,
		fmt.Sprintf("The kernel's clock source is %s, which runs in steps of milliseconds and may drift.", f.clockSource),
		"Find out why the kernel rejected better ones: dmesg | grep clocksource.")
	ahead := storekit.Ahead(f.fence, f.wall)
	c.Advice(ahead > storekit.ClockTolerance, findClock,
		fmt.Sprintf("The highest fence is %v ahead of the host's clock, so the clock was set back: fences would fall if the file were lost now.", ahead.Round(time.Second)),
		"Correct the clock, and do not start with an empty file before the clock has caught up.")
}

// sentence turns an error's cure into a finding's.
func sentence(cure string) string { return strings.ToUpper(cure[:1]) + cure[1:] + "." }

func bytesText(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

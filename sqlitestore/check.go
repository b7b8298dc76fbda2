package sqlitestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// Names of Findings.
const (
	findFilesystem = "filesystem"
	findReadOnly   = "read-only"
	findDamage     = "damage"
	findDurability = "durability"
	findSpace      = "space"
	findBloat      = "bloat"
	findLog        = "log"
	findClock      = "clock"
)

const (
	// soundWithin is how long Check reads the file to see whether it is sound.
	soundWithin = 5 * time.Second
	// littleSpace is the free space below which there is advice: the log alone
	// grows to 16 MiB, and for a moment beyond.
	littleSpace = 128 << 20
	// largeLog is the size of the log above which somebody keeps it from being
	// moved into the file.
	largeLog = 128 << 20
	// muchFree is how much of a file may be free pages without a word.
	muchFree = 64 << 20
	// clockTolerance is how far the fences may be ahead of the clock.
	clockTolerance = 500 * time.Millisecond
)

var _ dibs.Checker = (*Store)(nil)

// Check implements dibs.Checker. It reads the whole file to see whether it is
// sound, for 5 s at most, and is in nobody's way meanwhile.
//
// The names of what it finds: filesystem, read-only, damage, durability, space,
// bloat, log, clock.
func (s *Store) Check(ctx context.Context) ([]dibs.Finding, error) {
	f, err := s.facts(ctx, soundWithin)
	if err != nil {
		return nil, err
	}
	return f.findings(), nil
}

// facts is what Check looks at.
type facts struct {
	filesystem  filesystem
	writable    error
	damage      string // "": none was found
	incomplete  bool   // damage was looked for, but not everywhere
	journal     string
	synchronous int64
	size, free  int64 // of the file, and the free pages in it; bytes
	log         int64 // bytes
	fence       int64
	wall        int64
	clockSource string // "" where the system does not tell
	ownTime     bool   // the process has a time since boot of its own
	shared      bool   // the file is the application's
}

// filesystem is what a file is on.
type filesystem struct {
	name  string // "" where the system does not tell
	trait trait
	free  int64 // bytes that this user may still write
}

// trait is what matters about a filesystem.
type trait uint8

const (
	local     trait = iota
	network         // other hosts may have it too
	fleeting        // it ends with the host's boot
	container       // it ends with the container
	relayed         // some program stands between
)

func (s *Store) facts(ctx context.Context, patience time.Duration) (*facts, error) {
	f := &facts{writable: writable(s.full), wall: s.clock.wall(), shared: s.opt.Shared}
	f.clockSource, f.ownTime = clockFacts()
	f.filesystem = filesystemOf(s.full)
	if info, err := os.Stat(s.full + "-wal"); err == nil {
		f.log = info.Size()
	}
	// On the connection that is at work, which also finds out whether that can
	// lock the file, and whether the file is still where it was.
	if err := s.work(ctx, func(tx *transaction) {
		f.fence = tx.fence
		f.synchronous, tx.err = s.conn.Query("PRAGMA synchronous")
	}); err != nil {
		return nil, err
	}
	conn, err := lite.Open(s.full, lite.ReadWrite)
	if err != nil {
		return nil, fault(s.path, err)
	}
	defer conn.Close()
	if err := f.read(conn); err != nil {
		return nil, fault(s.path, err)
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, sql := range s.checks() {
		if err := f.look(limited, conn, sql); err != nil {
			return nil, fault(s.path, err)
		}
	}
	return f, ctx.Err()
}

// read looks into the file.
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

// look looks for damage with one of the statements that say "ok".
func (f *facts) look(ctx context.Context, conn *lite.Conn, sql string) error {
	if ctx.Err() != nil { // a small file would be read before anybody interrupts
		f.incomplete = true
		return nil
	}
	said, err := conn.QueryTextUntil(ctx.Done(), sql)
	switch {
	case isCode(err, lite.Interrupted):
		f.incomplete = true
	case isCode(err, lite.Corrupt, lite.NotADB):
		f.damage = err.Error()
	case err != nil:
		return err
	case said != "ok":
		f.damage = said
	}
	return nil
}

// checkup gathers findings.
type checkup []dibs.Finding

func (c *checkup) find(name string, severity dibs.Severity, what, cure string) {
	*c = append(*c, dibs.Finding{Name: name, Severity: severity, What: what, Cure: cure})
}

// findings says what is wrong, the worst first.
func (f *facts) findings() []dibs.Finding {
	c := checkup{}
	f.checkFile(&c)
	c.checkFilesystem(f.filesystem)
	f.checkTime(&c)
	order := []dibs.Severity{dibs.SeverityDangerous, dibs.SeverityAdvice, dibs.SeverityUnchecked}
	slices.SortStableFunc(c, func(a, b dibs.Finding) int {
		return cmp.Compare(slices.Index(order, a.Severity), slices.Index(order, b.Severity))
	})
	return c
}

func (f *facts) checkFile(c *checkup) {
	if f.damage != "" {
		c.find(findDamage, dibs.SeverityDangerous,
			"The file is damaged: "+strings.Join(strings.Fields(f.damage), " ")+".", sentence(cures[ErrDamaged]))
	}
	if f.incomplete {
		c.find(findDamage, dibs.SeverityUnchecked,
			fmt.Sprintf("The file has %s; reading all of it, to see whether it is sound, takes too long.", bytesText(f.size)),
			"When it is quiet, run PRAGMA quick_check in a sqlite3 shell.")
	}
	if errors.Is(f.writable, ErrReadOnly) {
		c.find(findReadOnly, dibs.SeverityDangerous,
			"This user may no longer write the file: programs that have it open go on, and none can open it again.", sentence(cures[ErrReadOnly]))
	}
	if f.journal != "wal" {
		c.find(findDurability, dibs.SeverityDangerous,
			fmt.Sprintf("The journal mode is %s: somebody changed it, and readers and writers are in each other's way.", f.journal),
			"Restart the programs that use the file; they set it to wal.")
	}
	if full := int64(2); f.synchronous < full {
		c.find(findDurability, dibs.SeverityDangerous,
			"What is granted and kept is not written through to the disk: it is lost when the machine fails.",
			"Restart this program, and have nothing set PRAGMA synchronous.")
	}
	if !f.shared && f.free > muchFree && f.free > f.size/2 {
		c.find(findBloat, dibs.SeverityAdvice,
			fmt.Sprintf("%s of the file's %s are free.", bytesText(f.free), bytesText(f.size)),
			"Run dibs prune, or call Prune: it gives the space back.")
	}
	if f.log > largeLog {
		c.find(findLog, dibs.SeverityAdvice,
			fmt.Sprintf("The log beside the file has %s: somebody reads the file and does not stop, so the log cannot be moved into it.", bytesText(f.log)),
			"Look for a program that has a transaction open on the file: a shell, a backup.")
	}
}

func (c *checkup) checkFilesystem(fs filesystem) {
	const move = "Move the file to a local disk, or use a database server."
	switch fs.trait {
	case local:
	case network:
		c.find(findFilesystem, dibs.SeverityDangerous,
			fmt.Sprintf("The file is on %s, a network's filesystem: its locks and its shared memory do not hold between hosts, and a key may be held twice.", fs.name), move)
	case fleeting:
		c.find(findFilesystem, dibs.SeverityDangerous,
			fmt.Sprintf("The file is on %s, in memory: records are gone when the host is restarted, and what they answer runs again.", fs.name), move)
	case container:
		c.find(findFilesystem, dibs.SeverityAdvice,
			fmt.Sprintf("The file is on %s: in a container it is in a layer that ends with it, and that no other one shares.", fs.name),
			"In a container, put the file on a volume of the host's disk.")
	case relayed:
		c.find(findFilesystem, dibs.SeverityAdvice,
			fmt.Sprintf("The file is on %s, which some program serves: whether its locks hold depends on that.", fs.name), move)
	}
	switch {
	case fs.name == "":
		c.find(findFilesystem, dibs.SeverityUnchecked, "This system does not tell what filesystem the file is on.",
			"See to it that it is a local disk with space left.")
	case fs.free < littleSpace:
		c.find(findSpace, dibs.SeverityAdvice,
			fmt.Sprintf("The filesystem has %s left; when it is full, claims are refused.", bytesText(fs.free)), "Free some space.")
	}
}

func (f *facts) checkTime(c *checkup) {
	if f.ownTime {
		c.find(findClock, dibs.SeverityDangerous,
			"This process is in a time namespace: its time since boot is not that of the host's other processes, and leases end early or late among them.",
			"Run all programs that use the file in the same time namespace.")
	}
	if strings.Contains(f.clockSource, "jiffies") {
		c.find(findClock, dibs.SeverityAdvice,
			fmt.Sprintf("The kernel's clock source is %s, which runs in steps of milliseconds and may drift.", f.clockSource),
			"Find out why the kernel gave up the better ones: dmesg | grep clocksource.")
	}
	if ahead := duration(f.fence - f.wall); ahead > clockTolerance {
		c.find(findClock, dibs.SeverityAdvice,
			fmt.Sprintf("The highest fence is %v ahead of the host's clock, which was set back: fences would fall if the file were lost now.", ahead.Round(time.Second)),
			"Put the clock right, or do not begin with an empty file until it has caught up.")
	}
}

// sentence makes a finding's cure of an error's.
func sentence(cure string) string { return strings.ToUpper(cure[:1]) + cure[1:] + "." }

func bytesText(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

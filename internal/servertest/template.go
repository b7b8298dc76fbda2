//go:build unix

package servertest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// A template is the data folder of a database that has just been set up. To set
// one up takes a second or more; so it is done once, kept in the user's cache
// folder, and copied for each server.
type template struct {
	kind    string // begins its name in the cache
	program string // the path of the server it is for
	// make sets one up in a folder that belongs to the account and is empty.
	make func(dir string, as *account) error
}

// copyTo makes dir, which is not there, a copy that belongs to the account.
func (t *template) copyTo(dir string, as *account) error {
	stamp, err := t.stamp()
	if err != nil {
		return err
	}
	kept, err := t.place()
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(kept+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // and so unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH); err != nil {
		return fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	if !isStamped(kept, stamp) {
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			return fmt.Errorf("locking %s: %w", lock.Name(), err)
		}
		// Somebody else may have made it while we waited.
		if !isStamped(kept, stamp) {
			if err := t.fill(kept, stamp); err != nil {
				return err
			}
		}
	}
	fresh := freshName(dir)
	if err := copyTree(fresh, filepath.Join(kept, "data"), as); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}

// stamp says which program the template is for: an update of the system puts
// another one in the same place.
func (t *template) stamp() (string, error) {
	path, err := filepath.EvalSymlinks(t.program)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("1 %s %d %d", path, info.Size(), info.ModTime().UnixNano()), nil
}

// isStamped reports whether what is kept was made whole and for the stamp.
func isStamped(kept, stamp string) bool {
	have, err := os.ReadFile(filepath.Join(kept, "stamp"))
	return err == nil && string(have) == stamp
}

// place returns where the template is kept: each path of a program has its own.
func (t *template) place() (string, error) {
	cache := filepath.Join(os.TempDir(), "dibs-cache-"+strconv.Itoa(os.Geteuid()))
	// Not everybody has a home, or may write there.
	if dir, err := os.UserCacheDir(); err == nil && os.MkdirAll(dir, 0o700) == nil {
		cache = dir
	}
	cache = filepath.Join(cache, "dibs", "servertest")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	sum := fnv.New32a()
	sum.Write([]byte(t.program))
	return filepath.Join(cache, fmt.Sprintf("%s-%08x", t.kind, sum.Sum32())), nil
}

// fill makes the template and keeps it. The stamp comes last: what is left of
// an attempt that was killed has none.
func (t *template) fill(kept, stamp string) (err error) {
	as, err := unprivileged()
	if err != nil {
		return err
	}
	f, err := newFolder(as)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.remove()) }()
	made := freshName(f.join("data"))
	if err := os.Mkdir(made, 0o700); err != nil {
		return err
	}
	if err := as.own(made); err != nil {
		return err
	}
	if err := t.make(made, as); err != nil {
		return fmt.Errorf("setting up a data folder: %w", err)
	}
	if err := os.RemoveAll(kept); err != nil {
		return err
	}
	if err := os.Mkdir(kept, 0o700); err != nil {
		return err
	}
	if err := copyTree(filepath.Join(kept, "data"), made, nil); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(kept, "stamp"), []byte(stamp), 0o600)
}

// freshName returns a name beside dir for a folder that is about to be filled.
// On ext4 a folder that is made there is placed by its name and far from others.
// In a place that it knows, ext4 looks at every file that was deleted there
// within seconds before it makes another, and tests that each delete a thousand
// then wait for most of a second. Elsewhere chattr fails or is missing, and
// nothing is lost.
func freshName(dir string) string {
	_ = exec.Command("chattr", "+T", filepath.Dir(dir)).Run()
	return dir + "-" + rand.Text()
}

// copyTree copies a folder to a path where nothing is, as the account's.
func copyTree(to, from string, as *account) error {
	buf := make([]byte, 256<<10)
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir():
			err = os.Mkdir(target, info.Mode().Perm())
		case entry.Type().IsRegular():
			err = copyFile(target, path, info, buf)
		default:
			err = errors.New(path + " is neither a file nor a folder")
		}
		if err != nil {
			return err
		}
		return as.own(target)
	})
}

// zero is what most of a fresh log is made of.
var zero = []byte{0}

// copyFile copies a file and leaves holes where it is empty: fresh databases are
// mostly that, and the disk need not be.
func copyFile(to, from string, info fs.FileInfo, buf []byte) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer out.Close()
	size := int64(0)
	for {
		n, err := in.Read(buf)
		if bytes.Count(buf[:n], zero) != n { // to compare takes the race detector long
			if _, err := out.WriteAt(buf[:n], size); err != nil {
				return err
			}
		}
		size += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := out.Truncate(size); err != nil {
		return err
	}
	return out.Close()
}

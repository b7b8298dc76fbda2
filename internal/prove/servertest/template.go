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

// A template is a new data folder of a database. Creating one takes a second or more, so
// it is created once, kept in the user's cache folder, and copied for each server.
type template struct {
	kind    string // begins its name in the cache
	program string // the path of its server
	// make creates the data in an empty folder of the account.
	make func(dir string, as *account) error
}

// copyTo makes dir, which must not exist, a copy that belongs to the account.
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
		// Another process may have made it meanwhile.
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

// stamp identifies the program, because a system update may replace it.
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

// isStamped reports whether the template is complete and has the stamp.
func isStamped(kept, stamp string) bool {
	have, err := os.ReadFile(filepath.Join(kept, "stamp"))
	return err == nil && string(have) == stamp
}

// place returns the template's folder, one for each path of a program.
func (t *template) place() (string, error) {
	cache := filepath.Join(os.TempDir(), "dibs-cache-"+strconv.Itoa(os.Geteuid()))
	// The user may have no writable home.
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

// fill makes the template. The stamp is written last, so an interrupted attempt has none.
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

// freshName returns a name next to dir for a new folder, and asks ext4 to place it far
// from other folders. Otherwise ext4 looks at every file deleted nearby within the last
// seconds, and tests that each delete a thousand wait for most of a second. If chattr
// fails, only time is lost.
func freshName(dir string) string {
	_ = exec.Command("chattr", "+T", filepath.Dir(dir)).Run()
	return dir + "-" + rand.Text()
}

// copyTree copies a folder to a new path, as files of the account.
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

// zero is the content of most of a new log.
var zero = []byte{0}

// copyFile copies a file and leaves holes for zeros, because new databases are mostly
// zeros.
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
		if bytes.Count(buf[:n], zero) != n { // bytes.Equal is slow with the race detector
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

//go:build unix

package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// s3Module is an object storage on files that heeds the conditions of writes. No distribution has it.
const s3Module, s3Version = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"

// S3Access and S3Secret are the credentials of every S3Server.
const S3Access, S3Secret = "dibs", "dibs-secret"

// An S3Server is an object storage that speaks S3, with one bucket.
type S3Server struct{ server }

// S3 starts an object storage that ends with its owner, and returns when it answers. The first time
// on a machine it is built with Go, which takes a minute or two. Kill loses nothing that was acknowledged.
func S3(owner Owner) *S3Server {
	owner.Helper()
	s := &S3Server{}
	path, err := buildS3()
	if err == nil {
		err = s.prepare(owner, "versitygw")
	}
	if err == nil {
		data := s.folder.join("data")
		s.wipe = func() error {
			if err := os.RemoveAll(data); err != nil {
				return err
			}
			return os.MkdirAll(filepath.Join(data, "dibs"), 0o700)
		}
		s.ready = s.answering("/health")
		s.command.path, s.command.env = path, []string{"PATH=/usr/bin:/bin"}
		s.command.args = []string{"versitygw", "--port", s.Addr(), "--access", S3Access, "--secret", S3Secret,
			"--health", "/health", "--keep-alive", "--quiet", "posix", data}
		err = s.beginEmpty()
	}
	return started(owner, s, err)
}

// URL returns the server's address: "http://127.0.0.1:4321".
func (s *S3Server) URL() string { return "http://" + s.Addr() }

// Store returns the URL of the store in its bucket, through an address; "": the server's.
func (s *S3Server) Store(addr string) string {
	if addr == "" {
		addr = s.Addr()
	}
	return "s3://dibs?endpoint=http://" + addr
}

// Start returns another text after each start of the process.
func (s *S3Server) Start() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.Itoa(s.proc.pid)
}

// buildS3 builds the server unless another process has, and returns its path.
func buildS3() (string, error) {
	dir := filepath.Join(os.TempDir(), "dibs-versitygw-"+s3Version)
	path := filepath.Join(dir, "versitygw")
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // and so unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	build := exec.Command("go", "install", s3Module+"@"+s3Version)
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOBIN="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building versitygw: %w\n%s", err, out)
	}
	return path, nil
}

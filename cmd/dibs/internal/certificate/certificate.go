// Package certificate has the certificate of a server, from files that may change while it
// serves.
package certificate

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/missing"
)

// Certificate is the certificate and the key of a server.
type Certificate struct {
	cert, key string // files, in PEM
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate // under mu
	read    [2]os.FileInfo   // under mu: the files when they were read; nil if missing
}

// New reads the certificate and its key.
func New(cert, key string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, log: log}
	c.read = c.stat()
	err := c.load()
	return c, err
}

// Config returns the settings of a server that uses the certificate.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(), nil }}
}

// Expires returns when the certificate that is in use expires.
func (c *Certificate) Expires() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.Leaf.NotAfter
}

// get returns the certificate, and reads it first if a file has changed. If the new files are
// wrong, it logs that once and returns the certificate that it had.
func (c *Certificate) get() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The files are looked at before they are read, so a change in between is noticed next time.
	now := c.stat()
	if same(now[0], c.read[0]) && same(now[1], c.read[1]) {
		return c.current
	}
	c.read = now
	if err := c.load(); err != nil {
		c.log.Error("the new certificate is wrong; the old one stays in use", "error", err)
	} else {
		c.log.Info("the certificate was read again", "file", c.cert)
	}
	return c.current
}

// load reads the files. After an error the certificate stays as it was.
func (c *Certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if e, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no file %s; for a trial, make both files: openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost -out %s -keyout %s", e.Path, missing.Word(c.cert), missing.Word(c.key))
	}
	if err != nil {
		return fmt.Errorf("the certificate %s with the key %s: %w", c.cert, c.key, err)
	}
	c.current = &pair
	return nil
}

// stat returns the state of both files.
func (c *Certificate) stat() (files [2]os.FileInfo) {
	for i, name := range []string{c.cert, c.key} {
		if info, err := os.Stat(name); err == nil {
			files[i] = info
		}
	}
	return files
}

// same reports whether a file did not change.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

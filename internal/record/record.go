// Package record says what the record of a key holds: the answer to a request, a run of dibs run, or the
// result of a function that runs once. dibs ls, dibs show, dibs resolve and the page have it from here.
package record

import (
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/oncerecord"
	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/store"
)

// Content is what a record holds, as ls --json and the page have it.
type Content struct {
	Status        int    `json:"status,omitempty"`         // of an answer
	EncryptedWith string `json:"encrypted_with,omitempty"` // the ID of the encryption key of an answer
	NotKept       string `json:"not_kept,omitempty"`       // why the result of a run of once was not stored
	Run           *Run   `json:"run,omitempty"`            // of dibs run --once-per

	Answer    *idempotency.Answer `json:"-"` // to a request
	notStored bool
}

// Run is a run of dibs run.
type Run struct {
	Succeeded bool      `json:"succeeded"`
	Exit      int       `json:"exit"`
	Host      string    `json:"host"`
	Command   string    `json:"command"`
	Began     time.Time `json:"began"` // by the clock of that host
	TookMS    int64     `json:"took_ms"`
}

// Read returns what a record holds. The zero Content is that of another program, or of an answer with a body
// of more than maxBody bytes.
func Read(key store.Key, data []byte, maxBody int64) (c Content) {
	if _, isRequest := idempotency.KeyPart(key.Name); isRequest && data != nil {
		c.EncryptedWith, _ = idempotency.EncryptedWith(data)
		if a, err := idempotency.DecodeAnswer(data, maxBody); err == nil { // otherwise the key only looks like one of HTTP
			c.Answer, c.Status, c.notStored = a, a.Status, a.NotKept
		}
	}
	if len(data) <= oncerecord.Max {
		if r, err := oncerecord.Read(data); err == nil && r.NotKept != nil {
			c.NotKept, c.notStored = *r.NotKept, true
		}
	}
	if r, ok := runrecord.Read(data); ok {
		c.Run = &Run{Succeeded: r.Exit == 0, Exit: r.Exit, Host: r.Host, Command: r.Command, Began: r.Began, TookMS: r.TookMS}
	}
	return c
}

// Outcome describes how the run ended.
func (r *Run) Outcome() string { return runrecord.Run{Exit: r.Exit}.Outcome() }

// NotStored reports whether a run was done whose answer or result could not be stored.
func (c *Content) NotStored() bool { return c.notStored }

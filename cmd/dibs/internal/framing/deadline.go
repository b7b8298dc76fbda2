package framing

import (
	"errors"
	"os"
	"time"
)

// net/http sets five read deadlines for each request: until when the next one
// may begin, until when its header must be there, none, long ago to end a read
// in the background, and none again. Each of them costs more than reading a
// clock, and nearly all are for nothing. So a Conn tells the system of a
// deadline only when a read could miss it: one that is earlier does as well,
// because a read that it ends can go on.

// deadline is a Conn's read deadline; its times are zero when there is none.
type deadline struct {
	want    time.Time // what was asked for
	set     time.Time // what the system knows
	reading bool
}

// longAgo is later than the deadlines that are set to end a read at once.
var longAgo = time.Unix(1<<20, 0)

func over(t time.Time) bool { return !t.IsZero() && t.Before(longAgo) }

// SetReadDeadline is net.Conn's.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit.want = t
	if c.limit.reading {
		return c.setRead()
	}
	return nil
}

// setRead tells the system, when it must know.
func (c *Conn) setRead() error {
	l := &c.limit
	switch {
	case over(l.set):
	case l.want.IsZero(), !l.set.IsZero() && !l.set.After(l.want):
		return nil
	}
	l.set = l.want
	return c.Conn.SetReadDeadline(l.want)
}

// beginRead is called before a read.
func (c *Conn) beginRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if over(c.limit.want) {
		return os.ErrDeadlineExceeded
	}
	if err := c.setRead(); err != nil {
		return err
	}
	c.limit.reading = true
	return nil
}

// endRead is called after a read with what it brought. It reports whether the
// read is over: it goes on when the deadline that ended it was too early.
func (c *Conn) endRead(p []byte, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.limit
	l.reading = false
	if len(p) > 0 && !c.aside.Load() {
		c.scan(p)
	}
	if err == nil || len(p) > 0 || l.set.Equal(l.want) || !errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	l.set = l.want
	return c.Conn.SetReadDeadline(l.want) != nil
}

// SetWriteDeadline is net.Conn's. net/http takes away after each answer what it
// has never set.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() && !c.limited.Load() {
		return nil
	}
	c.limited.Store(!t.IsZero())
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline is net.Conn's.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

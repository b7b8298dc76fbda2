package redisstore

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// stallLimit is how long a server that others can replace may owe an answer
// before its connections are given up. Only then do those who wait for it turn
// to its successor, so it is short; a server that is merely slow is asked again,
// which does no harm.
const stallLimit = 2 * time.Second

// watchedConn is a connection that ends when the other side owes an answer for
// too long. A server that hangs accepts all that is sent to it: without this,
// whoever waits for its answer finds out last that there is another one.
type watchedConn struct {
	net.Conn
	limit time.Duration
	epoch time.Time
	owed  atomic.Int64 // since when, from the epoch; 0 when nothing is
	hung  atomic.Bool  // given up
	over  atomic.Bool  // closed
	look  *time.Timer
	gone  func(*watchedConn) // called when it was closed
}

func watch(conn net.Conn, limit time.Duration, gone func(*watchedConn)) *watchedConn {
	c := &watchedConn{Conn: conn, limit: limit, epoch: time.Now(), gone: gone}
	c.look = time.AfterFunc(time.Hour, c.check)
	c.look.Reset(limit) // not before look is set
	return c
}

// check gives the connection up when it is time, and looks again later if not.
func (c *watchedConn) check() {
	owed := c.owed.Load()
	if owed != 0 && time.Since(c.epoch)-time.Duration(owed) > c.limit {
		c.hung.Store(true)
		_ = c.Conn.Close()
		return
	}
	c.look.Reset(c.limit / 4)
	if c.over.Load() {
		c.look.Stop()
	}
}

// Write notes that an answer is owed from now on.
func (c *watchedConn) Write(b []byte) (int, error) {
	if c.owed.Load() == 0 {
		c.owed.Store(int64(max(time.Since(c.epoch), 1)))
	}
	n, err := c.Conn.Write(b)
	return n, c.explain(err)
}

// Read notes that the server lives. How much it still owes is not counted:
// whoever waits for more soon writes again.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.owed.Store(0)
	}
	return n, c.explain(err)
}

// Close ends the watch too.
func (c *watchedConn) Close() error {
	c.over.Store(true)
	c.look.Stop()
	c.gone(c)
	return c.Conn.Close()
}

func (c *watchedConn) explain(err error) error {
	if err == nil || !c.hung.Load() {
		return err
	}
	return &fault{is: ErrUnreachable, said: fmt.Sprintf("%s said nothing for %v", c.RemoteAddr(), c.limit), cure: "it hangs"}
}

package framing

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts the deadlines that the system is told of.
type counted struct {
	net.Conn
	reads, writes int
}

func (c *counted) SetReadDeadline(t time.Time) error  { c.reads++; return c.Conn.SetReadDeadline(t) }
func (c *counted) SetWriteDeadline(t time.Time) error { c.writes++; return c.Conn.SetWriteDeadline(t) }

// TestReadDeadline: a read ends at the deadline that was set last, whatever the
// system knows of it.
func TestReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		c := &Conn{Conn: here}
		in := func(d time.Duration) time.Time {
			if d == 0 {
				return time.Time{}
			}
			return time.Now().Add(d)
		}
		tests := []struct {
			deadline time.Duration // 0: none
			data     time.Duration // when it comes; 0: never
		}{
			{deadline: 30 * time.Second, data: time.Second},
			{deadline: 2 * time.Minute},                     // longer than the system knows
			{deadline: 30 * time.Second},                    // after one that is over
			{deadline: 30 * time.Second, data: time.Second}, // the next four with time left
			{data: time.Hour},
			{deadline: 30 * time.Second, data: time.Second},
			{deadline: time.Second}, // earlier than the system knows
			{deadline: time.Minute, data: 59 * time.Second},
			{deadline: time.Minute},
		}
		for i, test := range tests {
			if err := c.SetReadDeadline(in(test.deadline)); err != nil {
				t.Fatal(err)
			}
			want := test.deadline
			if test.data > 0 {
				want = test.data
				go func() {
					time.Sleep(test.data)
					io.WriteString(there, "x")
				}()
			}
			start := time.Now()
			n, err := c.Read(make([]byte, 10))
			if took := time.Since(start); took != want || (n == 1) != (test.data > 0) || (err != nil) != (test.data == 0) {
				t.Errorf("%d: %d bytes and %v after %v; want to wait for %v", i, n, err, took, want)
			}
			if timeout, ok := errors.AsType[net.Error](err); err != nil && (!ok || !timeout.Timeout()) {
				t.Errorf("%d: the error is %v", i, err)
			}
		}
	})
}

// TestEndRead: a deadline long ago ends a read at once, also one that has begun,
// and hurts none after it; a later one that is set meanwhile counts.
func TestEndRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		c := &Conn{Conn: here}
		read := func() chan error {
			done := make(chan error, 1)
			go func() {
				_, err := c.Read(make([]byte, 1))
				done <- err
			}()
			synctest.Wait()
			return done
		}
		for _, before := range []time.Duration{0, time.Minute} {
			if before > 0 {
				c.SetReadDeadline(time.Now().Add(before))
			}
			done := read()
			c.SetReadDeadline(time.Unix(1, 0))
			if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a read that had begun: %v", err)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a read that begins: %v", err)
			}
			c.SetReadDeadline(time.Time{})
			done = read()
			io.WriteString(there, "x")
			if err := <-done; err != nil {
				t.Errorf("a read after that: %v", err)
			}
		}
		start := time.Now()
		c.SetReadDeadline(start.Add(time.Second))
		done := read()
		c.SetReadDeadline(start.Add(time.Minute))
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("with more time: %v after %v", err, time.Since(start))
		}
		c.SetReadDeadline(time.Time{})
		done = read()
		here.Close()
		if err := <-done; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("of a closed connection: %v", err)
		}
	})
}

// TestFewDeadlines: of those that net/http sets for each request, the system is
// told of next to none.
func TestFewDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		system := &counted{Conn: here}
		c := &Conn{Conn: system}
		go func() {
			for {
				if _, err := io.WriteString(there, "x"); err != nil {
					return
				}
			}
		}()
		read := func() {
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		const requests = 100
		for range requests {
			c.SetReadDeadline(time.Now().Add(2 * time.Minute))
			read()
			c.SetReadDeadline(time.Now().Add(30 * time.Second))
			read()
			c.SetReadDeadline(time.Time{})
			c.SetReadDeadline(time.Unix(1, 0)) // the read in the background had not begun
			c.SetReadDeadline(time.Time{})
			c.SetWriteDeadline(time.Time{})
			time.Sleep(time.Second)
		}
		if system.reads > 2*requests/10 || system.writes > 0 {
			t.Errorf("%d read and %d write deadlines for %d requests", system.reads, system.writes, requests)
		}
		c.SetDeadline(time.Now().Add(time.Second))
		if system.writes != 1 {
			t.Errorf("%d write deadlines; want the one that counts", system.writes)
		}
		c.SetDeadline(time.Time{})
		if system.writes != 2 {
			t.Errorf("%d write deadlines; want one taken away", system.writes)
		}
	})
}

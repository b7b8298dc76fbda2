//go:build unix

package servertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// echo is a server that answers each line with itself, and counts them.
func echo(t *testing.T) (addr string, lines *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	lines = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for r := bufio.NewReader(conn); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					lines.Add(1)
					_, _ = io.WriteString(conn, line)
				}
			}()
		}
	}()
	return listener.Addr().String(), lines
}

// caller is a client of echo.
type caller struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func call(t *testing.T, w *Wire) *caller {
	t.Helper()
	conn, err := net.Dial("tcp", w.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &caller{t, conn, bufio.NewReader(conn)}
}

func (c *caller) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the next line, or the error that came in its place.
func (c *caller) receive(within time.Duration) (string, error) {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		c.t.Fatal(err)
	}
	line, err := c.r.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (c *caller) wantEcho(line string) {
	c.t.Helper()
	c.say(line)
	c.wantLine(line)
}

func (c *caller) wantLine(line string) {
	c.t.Helper()
	if got, err := c.receive(waitLimit); err != nil || got != line {
		c.t.Fatalf("received %q, %v; want %q", got, err, line)
	}
}

// wantSilence looks for a moment only: a wire that lets something through is seldom
// slower, and one that does not is never taken for one.
func (c *caller) wantSilence() {
	c.t.Helper()
	if got, err := c.receive(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("received %q, %v; want nothing", got, err)
	}
}

func (c *caller) wantReset() {
	c.t.Helper()
	if got, err := c.receive(waitLimit); !errors.Is(err, syscall.ECONNRESET) {
		c.t.Fatalf("received %q, %v; want a reset", got, err)
	}
}

func TestWirePassesOn(t *testing.T) {
	addr, _ := echo(t)
	w := NewWire(t, addr)
	c := call(t, w)
	c.wantEcho("one")
	c.wantEcho(strings.Repeat("long", 1<<18))
	c.say("last words")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.wantLine("last words")
	if got, err := c.receive(waitLimit); err != io.EOF {
		t.Errorf("received %q, %v after the end", got, err)
	}
	if got := w.Accepted(); got != 1 {
		t.Errorf("%d connections accepted; want 1", got)
	}
}

func TestWireIsCut(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		addr, lines := echo(t)
		w := NewWire(t, addr)
		c := call(t, w)
		c.wantEcho("before")
		if hangs {
			w.Hang()
			c.say("held")
			c.wantSilence()
		}
		w.Cut()
		c.wantReset()
		if _, err := net.Dial("tcp", w.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialling a cut wire: %v", err)
		}
		w.Mend()
		call(t, w).wantEcho("after")
		if got := lines.Load(); got != 2 {
			t.Errorf("the server received %d lines; want 2", got)
		}
	}
}

// TestWireKeepsItsAddress: child processes that start while the wire is cut do not keep its
// address from it.
func TestWireKeepsItsAddress(t *testing.T) {
	t.Parallel()
	w := NewWire(t, "127.0.0.1:1")
	ctx, stop := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer stop()
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 500 {
		w.Cut()
		w.Mend() // fails the test if it cannot listen
	}
}

func TestWireHangs(t *testing.T) {
	addr, lines := echo(t)
	w := NewWire(t, addr)
	c := call(t, w)
	c.wantEcho("before")
	w.Hang()
	late := call(t, w)
	c.say("held")
	late.say("held too")
	c.wantSilence()
	late.wantSilence()
	if got := lines.Load(); got != 1 {
		t.Errorf("the server received %d lines; want 1", got)
	}
	w.Mend()
	c.wantLine("held")
	late.wantLine("held too")
}

func TestWireDelays(t *testing.T) {
	const way = 20 * time.Millisecond
	addr, _ := echo(t)
	w := NewWire(t, addr)
	c := call(t, w)
	c.wantEcho("before")
	w.Delay(way)
	begin := time.Now()
	c.wantEcho("slow")
	if took := time.Since(begin); took < 2*way {
		t.Errorf("there and back took %v; want %v at least", took, 2*way)
	}
	w.Delay(time.Hour)
	w.Mend()
	c.wantEcho("at once")
}

func TestWireDropsReplies(t *testing.T) {
	addr, lines := echo(t)
	w := NewWire(t, addr)
	c := call(t, w)
	w.DropReplies()
	c.say("unanswered")
	if err := await(func() error {
		if got := lines.Load(); got != 1 {
			return fmt.Errorf("the server received %d lines; want 1", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	c.wantSilence()
	w.Mend()
	call(t, w).wantEcho("answered")
}

func TestWireLosesAReply(t *testing.T) {
	addr, lines := echo(t)
	w := NewWire(t, addr)
	c, other := call(t, w), call(t, w)
	lost := w.LoseReplyTo("needle")
	c.wantEcho("hay")
	other.wantEcho("hay")
	// In two writes, and with others before and after it.
	if _, err := io.WriteString(c, "more\nnee"); err != nil {
		t.Fatal(err)
	}
	c.wantLine("more")
	c.say("dle")
	c.wantReset()
	<-lost
	if got := lines.Load(); got != 4 {
		t.Errorf("the server received %d lines; want 4", got)
	}
	other.wantEcho("needle")
	call(t, w).wantEcho("needle")
}

func TestWireToNowhere(t *testing.T) {
	// The reset may come before the dialling is done.
	conn, err := net.Dial("tcp", NewWire(t, Addr(t)).Addr())
	if err == nil {
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v; want a reset", err)
	}
}

// What is lost on the way to Redis was carried out, in a pipeline too.
func TestWireLosesWhatRedisDid(t *testing.T) {
	t.Parallel()
	s := Redis(t, nil)
	w := NewWire(t, s.Addr())
	c, err := dialRedis(w.Addr(), nil, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lost := w.LoseReplyTo("the key")
	var pipeline []byte
	for range 100 {
		pipeline = appendRequest(pipeline, []any{"INCR", "before"})
	}
	pipeline = appendRequest(pipeline, []any{"INCR", "the key"})
	if _, err := c.conn.Write(pipeline); err != nil {
		t.Fatal(err)
	}
	<-lost
	if got := s.Must("GET", "the key"); got != "1" {
		t.Errorf("the key is %v; want 1", got)
	}
	if _, err := c.Do("PING"); err == nil {
		t.Error("the connection was not reset")
	}
}

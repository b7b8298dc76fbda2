package wire_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

// echo is a server that answers each line with its name and the line.
type echo struct {
	name  string
	addr  string
	heard atomic.Int64 // lines
}

func newEcho(t *testing.T, name string) *echo {
	t.Helper()
	listener := testkit.Listen(t)
	e := &echo{name: name, addr: listener.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					e.heard.Add(1)
					if _, err := io.WriteString(conn, e.name+" "+lines.Text()+"\n"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	return e
}

// caller is a connection to an echo.
type caller struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func call(t *testing.T, w *wire.Wire) *caller {
	t.Helper()
	conn, err := net.Dial("tcp", w.Addr())
	testkit.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &caller{t, conn, bufio.NewReader(conn)}
}

func (c *caller) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// hear returns the next line, or says how there is none: "nothing" within a moment, or
// "reset".
func (c *caller) hear(within time.Duration) string {
	c.t.Helper()
	testkit.Must(c.t, c.conn.SetReadDeadline(time.Now().Add(within)))
	line, err := c.r.ReadString('\n')
	var late net.Error
	switch {
	case err == nil:
		return strings.TrimSpace(line)
	case errors.As(err, &late) && late.Timeout():
		return "nothing"
	}
	return "reset"
}

func (c *caller) want(line string, want string) {
	c.t.Helper()
	within := testkit.Limit
	if want == "nothing" {
		within = 200 * time.Millisecond
	}
	if line != "" {
		c.say(line)
	}
	if got := c.hear(within); got != want {
		c.t.Errorf("the reply to %q is %q; want %q", line, got, want)
	}
}

func newWire(t *testing.T, e *echo) *wire.Wire {
	t.Helper()
	w, err := wire.Open(e.addr)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, w.Close()) })
	return w
}

// counted checks what a wire counts, but for the connections.
func counted(t *testing.T, w *wire.Wire, want wire.Counts) {
	t.Helper()
	got := w.Counts()
	got.Connections = 0
	if got != want {
		t.Errorf("the counts are %+v; want %+v", got, want)
	}
}

func TestWirePasses(t *testing.T) {
	w := newWire(t, newEcho(t, "a"))
	c := call(t, w)
	c.want("one", "a one")
	c.want("two", "a two")
	counted(t, w, wire.Counts{})
	if n := w.Counts().Connections; n != 1 || len(w.Sources()) != 1 {
		t.Errorf("it has had %d connections, and has %d", n, len(w.Sources()))
	}
}

func TestWireDelays(t *testing.T) {
	w := newWire(t, newEcho(t, "a"))
	c := call(t, w)
	w.Set(wire.Trouble{Delay: 30 * time.Millisecond, Jitter: time.Millisecond}, nil)
	begin := time.Now()
	c.want("one", "a one")
	if took := time.Since(begin); took < 60*time.Millisecond {
		t.Errorf("there and back took %v; want 60ms or more", took)
	}
	counted(t, w, wire.Counts{Late: 2})
}

func TestWireHolds(t *testing.T) {
	e := newEcho(t, "a")
	w := newWire(t, e)
	c := call(t, w)
	w.Set(wire.Trouble{Hold: true}, nil)
	c.say("one")
	testkit.Eventually(t, "what is held", func() bool { return w.Holding() == 1 })
	c.want("", "nothing")
	if heard := e.heard.Load(); heard != 0 {
		t.Errorf("the server has got %d requests; want none", heard)
	}
	counted(t, w, wire.Counts{})
	w.Set(wire.Trouble{}, nil)
	c.want("", "a one")
	counted(t, w, wire.Counts{Late: 1, Held: 1})
}

func TestWireLoses(t *testing.T) {
	for _, test := range []struct {
		name  string
		lose  [2]bool
		heard int64
		want  wire.Counts
	}{
		{"requests", [2]bool{wire.Requests: true}, 0, wire.Counts{LostRequests: 1, Closed: 1}},
		{"replies", [2]bool{wire.Replies: true}, 1, wire.Counts{LostReplies: 1, Closed: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEcho(t, "a")
			w := newWire(t, e)
			c, idle := call(t, w), call(t, w)
			idle.want("before", "a before")
			w.Set(wire.Trouble{Lose: test.lose}, nil)
			c.want("one", "nothing")
			testkit.Eventually(t, "what is lost", func() bool { n := w.Counts(); return n.LostRequests+n.LostReplies > 0 })
			w.Set(wire.Trouble{}, nil)
			c.want("", "reset")
			idle.want("after", "a after") // it has lost nothing
			if heard := e.heard.Load() - 2; heard != test.heard {
				t.Errorf("the server has heard %d requests; want %d", heard, test.heard)
			}
			counted(t, w, test.want)
		})
	}
}

func TestWireLosesAReply(t *testing.T) {
	e := newEcho(t, "a")
	w := newWire(t, e)
	w.Set(wire.Trouble{LoseReply: 1}, nil)
	c := call(t, w)
	c.want("one", "reset")
	if heard := e.heard.Load(); heard != 1 {
		t.Errorf("the server has heard %d requests; want 1", heard)
	}
	call(t, w).want("two", "a two")
	counted(t, w, wire.Counts{LostReplies: 1, Closed: 1})
}

func TestWireResets(t *testing.T) {
	e := newEcho(t, "a")
	w := newWire(t, e)
	idle, waiting := call(t, w), call(t, w)
	idle.want("one", "a one")
	w.Set(wire.Trouble{Hold: true}, nil) // even while new ones are refused, or the reply arrives before the reset
	waiting.say("two")
	testkit.Eventually(t, "what is held", func() bool { return w.Holding() == 1 })
	w.Set(wire.Trouble{Hold: true, Refuse: true}, nil)
	w.Reset()
	idle.want("", "reset")
	if conn, err := net.Dial("tcp", w.Addr()); err == nil { // or refused this early
		(&caller{t, conn, bufio.NewReader(conn)}).want("", "reset")
		conn.Close()
	}
	counted(t, w, wire.Counts{Closed: 1, Refused: 1})
	w.Set(wire.Trouble{}, nil)
	call(t, w).want("three", "a three")
}

func TestWireLeads(t *testing.T) {
	w := newWire(t, newEcho(t, "a"))
	c := call(t, w)
	c.want("one", "a one")
	w.Lead(newEcho(t, "b").addr)
	c.want("", "reset")
	call(t, w).want("two", "b two")
	counted(t, w, wire.Counts{})
}

func TestWireLosesTheReplyTo(t *testing.T) {
	e := newEcho(t, "a")
	w := newWire(t, e)
	c, other := call(t, w), call(t, w)
	lost := w.LoseReplyTo("needle")
	c.want("hay", "a hay")
	other.want("hay", "a hay")
	// In two writes, and after another one.
	if _, err := io.WriteString(c.conn, "more\nnee"); err != nil {
		t.Fatal(err)
	}
	c.want("", "a more")
	c.want("dle", "reset")
	<-lost
	if heard := e.heard.Load(); heard != 4 {
		t.Errorf("the server has heard %d requests; want 4", heard)
	}
	other.want("needle", "a needle")
	call(t, w).want("needle", "a needle")
	counted(t, w, wire.Counts{LostReplies: 1})
}

func TestWireIsCut(t *testing.T) {
	w := newWire(t, newEcho(t, "a"))
	c := call(t, w)
	c.want("one", "a one")
	w.Cut()
	c.want("", "reset")
	if conn, err := net.Dial("tcp", w.Addr()); err == nil { // or refused this early
		(&caller{t, conn, bufio.NewReader(conn)}).want("", "reset")
		conn.Close()
	}
	w.Mend()
	call(t, w).want("two", "a two")
}

func TestWireEndsWithItsConnection(t *testing.T) {
	w := newWire(t, newEcho(t, "a"))
	c := call(t, w)
	c.want(strings.Repeat("long", 1<<12), "a "+strings.Repeat("long", 1<<12))
	c.say("last words")
	testkit.Must(t, c.conn.(*net.TCPConn).CloseWrite())
	c.want("", "a last words")
	if _, err := c.r.ReadByte(); err != io.EOF {
		t.Errorf("after the end there is %v", err)
	}
}

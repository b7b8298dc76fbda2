package fault_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/proof/fault"
)

func waitFor(t *testing.T, what string, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(failpoint.Limit); !there(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there is not %s, after %v", what, failpoint.Limit)
		}
	}
}

// echo is a server that answers each line with its name and the line.
type echo struct {
	name  string
	addr  string
	heard atomic.Int64 // lines
}

func newEcho(t *testing.T, name string) *echo {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

func call(t *testing.T, w *fault.Wire) *caller {
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
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// hear returns the next line, or says how there is none: "nothing" within a moment, or
// "reset".
func (c *caller) hear(within time.Duration) string {
	c.t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		c.t.Fatal(err)
	}
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
	within := failpoint.Limit
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

func newWire(t *testing.T, e *echo) *fault.Wire {
	t.Helper()
	w, err := fault.Open(e.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// counted checks what a wire counts, but for the connections.
func counted(t *testing.T, w *fault.Wire, want fault.Counts) {
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
	counted(t, w, fault.Counts{})
	if n := w.Counts().Connections; n != 1 || len(w.Sources()) != 1 {
		t.Errorf("it has had %d connections, and has %d", n, len(w.Sources()))
	}
}

func TestWireDelays(t *testing.T) {
	w := newWire(t, newEcho(t, "a"))
	c := call(t, w)
	w.Set(fault.Trouble{Delay: 30 * time.Millisecond, Jitter: time.Millisecond}, nil)
	begin := time.Now()
	c.want("one", "a one")
	if took := time.Since(begin); took < 60*time.Millisecond {
		t.Errorf("there and back took %v; want 60ms or more", took)
	}
	counted(t, w, fault.Counts{Late: 2})
}

func TestWireHolds(t *testing.T) {
	e := newEcho(t, "a")
	w := newWire(t, e)
	c := call(t, w)
	w.Set(fault.Trouble{Hold: true}, nil)
	c.say("one")
	waitFor(t, "what is held", func() bool { return w.Holding() == 1 })
	c.want("", "nothing")
	if heard := e.heard.Load(); heard != 0 {
		t.Errorf("the server has got %d requests; want none", heard)
	}
	counted(t, w, fault.Counts{})
	w.Set(fault.Trouble{}, nil)
	c.want("", "a one")
	counted(t, w, fault.Counts{Late: 1, Held: 1})
}

func TestWireLoses(t *testing.T) {
	for _, test := range []struct {
		name  string
		lose  [2]bool
		heard int64
		want  fault.Counts
	}{
		{"requests", [2]bool{fault.Requests: true}, 0, fault.Counts{LostRequests: 1, Closed: 1}},
		{"replies", [2]bool{fault.Replies: true}, 1, fault.Counts{LostReplies: 1, Closed: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEcho(t, "a")
			w := newWire(t, e)
			c, idle := call(t, w), call(t, w)
			idle.want("before", "a before")
			w.Set(fault.Trouble{Lose: test.lose}, nil)
			c.want("one", "nothing")
			waitFor(t, "what is lost", func() bool { n := w.Counts(); return n.LostRequests+n.LostReplies > 0 })
			w.Set(fault.Trouble{}, nil)
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
	w.Set(fault.Trouble{LoseReply: 1}, nil)
	c := call(t, w)
	c.want("one", "reset")
	if heard := e.heard.Load(); heard != 1 {
		t.Errorf("the server has heard %d requests; want 1", heard)
	}
	call(t, w).want("two", "a two")
	counted(t, w, fault.Counts{LostReplies: 1, Closed: 1})
}

func TestWireResets(t *testing.T) {
	e := newEcho(t, "a")
	w := newWire(t, e)
	idle, waiting := call(t, w), call(t, w)
	idle.want("one", "a one")
	w.Set(fault.Trouble{Hold: true}, nil) // also while new ones are refused, or the reply arrives before the reset
	waiting.say("two")
	waitFor(t, "what is held", func() bool { return w.Holding() == 1 })
	w.Set(fault.Trouble{Hold: true, Refuse: true}, nil)
	w.Reset()
	idle.want("", "reset")
	if conn, err := net.Dial("tcp", w.Addr()); err == nil { // or refused this early
		(&caller{t, conn, bufio.NewReader(conn)}).want("", "reset")
		conn.Close()
	}
	counted(t, w, fault.Counts{Closed: 1, Refused: 1})
	w.Set(fault.Trouble{}, nil)
	call(t, w).want("three", "a three")
}

func TestWireLeads(t *testing.T) {
	w := newWire(t, newEcho(t, "a"))
	c := call(t, w)
	c.want("one", "a one")
	w.Lead(newEcho(t, "b").addr)
	c.want("", "reset")
	call(t, w).want("two", "b two")
	counted(t, w, fault.Counts{})
}

func TestThrough(t *testing.T) {
	for _, test := range []struct {
		url  string
		want string // the URL, with WIRE for the wire's address; or a part of the error
	}{
		{"redis://127.0.0.1:7000/0", "redis://WIRE/0"},
		{"redis://localhost", "redis://WIRE"},
		{"redis://:s3cr@t/x@localhost:1/2?prefix=a@b", "redis://:s3cr@t/x@WIRE/2?prefix=a@b"},
		{"redis://:p%2Fq@localhost:1/2?prefix=p", "redis://:p%2Fq@WIRE/2?prefix=p"},
		{"postgres://u:p@h@127.0.0.1/db?sslmode=disable", "postgres://u:p@h@WIRE/db?sslmode=disable"},
		{"postgresql://[::1]:5433/db", "postgresql://WIRE/db"},
		{"mysql://root@127.0.0.1/app?migrate=true", "mysql://root@WIRE/app?migrate=true"},
		{"mariadb://root@127.0.0.1:3307/app", "mariadb://root@WIRE/app"},
		{"rediss://127.0.0.1", "by TLS"},
		{"redis+sentinel://a,b/m", "find their servers by themselves"},
		{"redis+unix:///tmp/s", "by a socket"},
		{"postgres:///db?host=/tmp", "a socket"},
		{"postgres://a,b/db", "several servers"},
		{"postgres://h/db?sslmode=verify-full", "by TLS"},
		{"mysql://root@h/app?tls=true", "by TLS"},
		{"mysql://root@h/app?socket=/tmp/s", "a socket"},
		{"sqlite:dibs.db", "no server"},
		{"memory:", "no server"},
	} {
		wires, urls, err := fault.Through(test.url, 1)
		if err != nil {
			if strings.Contains(test.want, "WIRE") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v; want %s", test.url, err, test.want)
			}
			continue
		}
		want := strings.ReplaceAll(test.want, "WIRE", wires[0].Addr())
		if urls[0] != want {
			t.Errorf("%s: through the wire it is %s; want %s", test.url, urls[0], want)
		}
		if err := wires[0].Close(); err != nil {
			t.Error(err)
		}
	}
}

// idlers are workers of whom none does anything: processes that do not use the store.
type idlers struct{ pid int }

func (i *idlers) Len() int               { return 1 }
func (i *idlers) PID(int) int            { return i.pid }
func (i *idlers) Kill(int) (bool, error) { return false, nil }
func (i *idlers) Lost(int) int           { return 0 }
func (i *idlers) Failed(string) int      { return 0 }
func (i *idlers) Stop(ctx context.Context, _ int, d time.Duration) (bool, error) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return true, nil
}

// sham is a server, a replica and a clock to which nothing can be done.
type sham struct{ addr string }

func (*sham) Kill()                             {}
func (*sham) Restart()                          {}
func (*sham) Pause()                            {}
func (*sham) Continue()                         {}
func (*sham) Lag() error                        { return nil }
func (*sham) Rebuild() error                    { return nil }
func (*sham) Step(time.Duration) error          { return nil }
func (s *sham) Promote() (string, int64, error) { return s.addr, 0, nil }

func TestSelect(t *testing.T) {
	workers := &idlers{1}
	file := &fault.Target{URL: "sqlite:/nowhere/dibs.db", Workers: workers}
	theirs := &fault.Target{URL: "redis://127.0.0.1:1", Workers: workers, Wires: make([]*fault.Wire, 1)}
	ours := &fault.Target{URL: theirs.URL, Workers: workers, Wires: theirs.Wires, Server: &sham{}}
	for _, test := range []struct {
		target *fault.Target
		list   string
		want   string // names; or the error's beginning
		absent string
	}{
		{file, "none", "", ""},
		{file, "worker,-kill", "stop", ""},
		{file, "kill, stop", "kill stop", ""},
		{file, "cut", "", "cut"},
		{file, "oops", "there is no fault \"oops\"", ""},
		{file, "kill,", "there is no fault \"\"", ""},
		{theirs, "data", "", "script-flush flushall failover"},
		{theirs, "flushall", "flushall", ""},
		{ours, "data", "script-flush flushall", "failover"},
		{theirs, "server", "kill-connections", "server-kill server-stop server-clock"},
		{theirs, "-worker,-data,-server,-file", "delay cut partition lost-requests lost-replies lost-reply", ""},
	} {
		var got, absent []string
		apply, not, err := fault.Select(test.target, test.list)
		for _, f := range apply {
			got = append(got, f.Name)
		}
		for _, a := range not {
			absent = append(absent, a.Name)
			if a.Why == "" {
				t.Errorf("%q: %s is absent without a reason", test.list, a.Name)
			}
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if s := strings.Join(got, " "); s != test.want && (err == nil || !strings.HasPrefix(s, test.want)) {
			t.Errorf("%q selects %q; want %q", test.list, s, test.want)
		}
		if s := strings.Join(absent, " "); s != test.absent {
			t.Errorf("of %q, there are not %q; want %q", test.list, s, test.absent)
		}
	}
	for _, durable := range []bool{false, true} {
		ours.Durable = durable
		apply, _, err := fault.Select(ours, "server-kill,flushall")
		if err != nil {
			t.Fatal(err)
		}
		if apply[0].Forgets == durable || !apply[1].Forgets {
			t.Errorf("a server that keeps what it knows (%v) forgets it when it is killed: %v", durable, apply[0].Forgets)
		}
	}
}

package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	kept  = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nkept"
	fresh = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfresh"
)

// TestLineIsKept: after an answer that ended as it should, the next exchange has
// the same line; after any other it has a new one.
func TestLineIsKept(t *testing.T) {
	tests := []struct {
		name string
		turn turn
		read func(t *testing.T, res *http.Response, err error)
		want string
	}{
		{name: "known length", turn: say(ok), read: readBody("ok"), want: "kept"},
		{name: "no body", turn: say("HTTP/1.1 204 No Content\r\n\r\n"), read: readBody(""), want: "kept"},
		{name: "chunks and a trailer", turn: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n"),
			read: func(t *testing.T, res *http.Response, err error) {
				readBody("ok")(t, res, err)
				if res.Trailer.Get("X-Sum") != "1" {
					t.Errorf("the trailer is %v", res.Trailer)
				}
			}, want: "kept"},
		{name: "hints before it", turn: say("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + ok), read: readBody("ok"), want: "kept"},
		{name: "the body ends with the connection", turn: sayAndLeave("HTTP/1.1 200 OK\r\n\r\nok"), read: readBody("ok"), want: "fresh"},
		{name: "Connection: close", turn: say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"), read: readBody("ok"), want: "fresh"},
		{name: "HTTP/1.0", turn: say("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"), read: readBody("ok"), want: "fresh"},
		{name: "more than an answer", turn: say(ok + ok), read: readBody("ok"), want: "fresh"},
		{name: "the body was not read", turn: say(ok), read: func(t *testing.T, res *http.Response, err error) {
			if err != nil || res.Body.Close() != nil {
				t.Error(err)
			}
			if _, err := res.Body.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
				t.Errorf("reading after Close: %v", err)
			}
		}, want: "fresh"},
		{name: "another protocol", turn: say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"), read: failed(HungUp), want: "fresh"},
		{name: "no status at all", turn: say("HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n"), read: failed(HungUp), want: "fresh"},
		{name: "an endless header", turn: endlessHeader, read: failed(HungUp), want: "fresh"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			origin := newRude(t, []turn{test.turn, say(kept)}, []turn{say(fresh)})
			tr := newTransport(t, origin.url, nil)
			req := request(t, tr, "POST", "amount=7")
			res, err := tr.Exchange(req, message(req), func(int, http.Header) {})
			test.read(t, res, err)
			if status, body, err := exchangeTrip(tr, request(t, tr, "POST", "")); status != 200 || body != test.want || err != nil {
				t.Errorf("the next one got %d %q %v; want %q", status, body, err, test.want)
			}
		})
	}
}

// readBody reads an answer to its end.
func readBody(want string) func(*testing.T, *http.Response, error) {
	return func(t *testing.T, res *http.Response, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if _, body, err := answerOf(res); body != want || err != nil {
			t.Errorf("the body is %q, %v", body, err)
		}
	}
}

func failed(want Kind) func(*testing.T, *http.Response, error) {
	return func(t *testing.T, _ *http.Response, err error) {
		t.Helper()
		if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != want {
			t.Errorf("the error is %v; want kind %d", err, want)
		}
	}
}

// endlessHeader sends header fields until nobody listens any more.
func endlessHeader(c *net.TCPConn, r *bufio.Reader) bool {
	readAll(r)
	line := "X-More: " + strings.Repeat("x", 1<<20) + "\r\n"
	_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
	for err == nil {
		_, err = io.WriteString(c, line)
	}
	return false
}

// TestInformed: informational answers are told of, in their order.
func TestInformed(t *testing.T) {
	origin := newRude(t, []turn{say("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok)})
	tr := newTransport(t, origin.url, nil)
	req := request(t, tr, "POST", "")
	var told []string
	res, err := tr.Exchange(req, message(req), func(status int, h http.Header) { told = append(told, fmt.Sprint(status, h["Link"])) })
	readBody("ok")(t, res, err)
	if want := []string{"102 []", "103 [</a>]"}; !slices.Equal(told, want) {
		t.Errorf("told of %q; want %q", told, want)
	}
}

// TestIdleLineIsDead: a line that the origin has closed, or that takes no byte
// any more, is replaced: the origin has seen nothing.
func TestIdleLineIsDead(t *testing.T) {
	tests := map[string]func(t *testing.T, l *line){
		"closed by the origin": func(t *testing.T, l *line) { waitFor(t, func() bool { return hungUp(l.Conn) }) },
		"takes nothing": func(_ *testing.T, l *line) {
			dead := &mortal{Conn: l.Conn}
			dead.dead.Store(true)
			l.Conn = dead
		},
	}
	for name, kill := range tests {
		t.Run(name, func(t *testing.T) {
			first := say(ok)
			if name == "closed by the origin" {
				first = sayAndLeave(ok)
			}
			origin := newRude(t, []turn{first}, []turn{say(fresh)})
			tr := newTransport(t, origin.url, nil)
			if _, body, err := exchangeTrip(tr, request(t, tr, "POST", "x")); body != "ok" {
				t.Fatal(err)
			}
			if len(tr.lines.idle) != 1 {
				t.Fatalf("%d lines are idle", len(tr.lines.idle))
			}
			kill(t, tr.lines.idle[0])
			if _, body, err := exchangeTrip(tr, request(t, tr, "POST", "y")); body != "fresh" {
				t.Errorf("got %q %v", body, err)
			}
			waitFor(t, func() bool { return len(origin.requests()) >= 2 })
			if seen := origin.requests(); len(seen) != 2 {
				t.Errorf("the origin saw %q", seen)
			}
		})
	}
}

// TestFreshLineIsDead: a new connection that takes nothing will not do better a
// second time.
func TestFreshLineIsDead(t *testing.T) {
	origin := newRude(t, []turn{say(ok)})
	tr := newTransport(t, origin.url, nil)
	dead := &mortal{}
	dead.dead.Store(true)
	tr.lines.idle = []*line{{Conn: dead}}
	here, there := net.Pipe()
	defer there.Close()
	dead.Conn = here
	_, _, err := exchangeTrip(tr, request(t, tr, "POST", "x"))
	failed(Unreached)(t, nil, err)
	if seen := origin.requests(); len(seen) > 0 {
		t.Errorf("the origin saw %q", seen)
	}
}

// TestInterrupted: an exchange ends with its context, whatever it is doing, and
// its line with it.
func TestInterrupted(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	tests := []struct {
		name string
		says string // "-": it does not even read
		body string
		cut  bool
	}{
		{name: "writes", says: "-", body: strings.Repeat("x", 32<<20)},
		{name: "reads the header", says: "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 2"},
		{name: "reads the body", says: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", cut: true},
	}
	ends := []struct {
		name string
		with error
		kind Kind
	}{{"canceled", context.Canceled, HungUp}, {"late", context.DeadlineExceeded, TimedOut}}
	for _, test := range tests {
		for _, end := range ends {
			t.Run(test.name+", "+end.name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				origin := newRude(t, []turn{func(c *net.TCPConn, r *bufio.Reader) bool {
					if test.says != "-" {
						readAll(r)
						io.WriteString(c, test.says)
					}
					cancel()
					<-release
					return false
				}})
				tr := newTransport(t, origin.url, nil)
				_, _, err := exchangeTrip(tr, request(t, tr, "POST", test.body).WithContext(endsWith{ctx, end.with}))
				if !errors.Is(err, end.with) {
					t.Errorf("the error is %v", err)
				}
				if !test.cut {
					failed(end.kind)(t, nil, err)
				}
				if tr.lines.take() != nil {
					t.Error("the line was kept")
				}
			})
		}
	}
}

// endsWith is a context that ends with an error of its own, as that of a guarded
// request does.
type endsWith struct {
	context.Context
	err error
}

func (c endsWith) Err() error {
	if c.Context.Err() == nil {
		return nil
	}
	return c.err
}

// TestIdleLines: idle lines are closed when their time is over or there are too
// many, and not before.
func TestIdleLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := &lines{most: 3, after: time.Minute}
		put := func() (l *line, closed func() bool) {
			here, there := net.Pipe()
			l = &line{Conn: here}
			ended := make(chan struct{})
			go func() {
				io.Copy(io.Discard, there)
				close(ended)
			}()
			ls.put(l)
			return l, func() bool {
				synctest.Wait()
				select {
				case <-ended:
					return true
				default:
					return false
				}
			}
		}
		_, old := put()
		time.Sleep(29 * time.Second)
		last, young := put()
		if ls.take() != last {
			t.Error("the line that was used last is not the next")
		}
		ls.put(last)
		time.Sleep(30 * time.Second) // 59 s
		if old() || young() {
			t.Error("a line was closed before its time")
		}
		ls.put(ls.take()) // young again
		time.Sleep(time.Second)
		if !old() || young() {
			t.Errorf("after a minute: old %v, young %v", old(), young())
		}
		time.Sleep(time.Minute)
		if !young() || len(ls.idle) > 0 {
			t.Error("a line was not closed in time")
		}
		time.Sleep(time.Hour) // the timer rests, and starts again
		_, next := put()
		_, another := put()
		_, third := put()
		_, excess := put()
		if next() || another() || third() || !excess() {
			t.Error("the fourth line is not the one too many")
		}
		time.Sleep(time.Minute)
		if !next() || !another() || !third() {
			t.Error("lines were not closed in time")
		}
		_, rest := put()
		ls.close()
		if !rest() || ls.take() != nil {
			t.Error("close left a line")
		}
	})
}

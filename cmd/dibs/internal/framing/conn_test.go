package framing

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// listener makes a Conn of each connection.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &Conn{Conn: c}, err
}

// TestConn: behind a real server, the ambiguous request of a connection is told
// from those before it, also when all come in one piece.
func TestConn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	server := &http.Server{
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !r.Context().Value(key{}).(*Conn).Admit() {
				w.WriteHeader(400)
				return
			}
			io.Copy(w, r.Body)
		}),
	}
	go server.Serve(listener{l})
	defer server.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"+
		"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ndef\r\n0\r\n\r\n"+
		"POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	r := bufio.NewReader(c)
	var got []string
	for range 3 {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		got = append(got, res.Status[:3]+string(body))
	}
	if s := strings.Join(got, " "); s != "200abc 200def 400" {
		t.Errorf("the answers are %s", s)
	}
}

// TestSilent: a peer that owes the rest of a body is silent; one that has sent
// its request, or has not begun, is not.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		c := &Conn{Conn: here}
		read := func(s string) {
			go io.WriteString(there, s)
			io.ReadFull(c, make([]byte, len(s)))
		}
		steps := []struct {
			sent   string
			served bool
			silent bool
		}{
			{sent: "POST / HTTP/1.1\r\nContent-Length: 4\r\n"},
			{sent: "\r\nab", served: true, silent: true},
			{sent: "c", silent: true},
			{sent: "d"},
			{sent: "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n"}, // not served yet
		}
		for _, step := range steps {
			read(step.sent)
			if step.served {
				c.Admit()
			}
			time.Sleep(time.Minute)
			if got := c.Silent(); (got == time.Minute) != step.silent || got != 0 && !step.silent {
				t.Errorf("after %q: silent for %v", step.sent, got)
			}
		}
	})
}

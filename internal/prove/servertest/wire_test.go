//go:build unix

package servertest

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
	testkit.Must(t, err)
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

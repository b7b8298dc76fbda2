package redisstore

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestHang: a server that says nothing any more is noticed in bounded time, by
// calls that would wait for ever, and closing does not wait for it. When it is
// back all goes on.
func TestHang(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	for _, what := range []string{"asked", "waited for"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			wire := servertest.NewWire(t, server.Addr())
			s := open(t, "redis://"+wire.Addr()+"?prefix="+ownPrefix(), nil)
			first := lock("key")
			mustGrant(t, s, first)
			if what == "waited for" {
				mustWait(t, s, lock("key", queued)) // there is a subscription now
			}
			wire.Hang()
			start := time.Now()
			answers := make([]dibs.Answer, 1)
			err := s.Claim(t.Context(), []dibs.Claim{lock("other")}, answers)
			if took := time.Since(start); !errors.Is(err, ErrUnreachable) || took > 2*callLimit {
				t.Errorf("%v after %v", err, took)
			}
			wire.Mend()
			eventually(t, 10*time.Second, "it is there again", func() bool {
				errs := make([]error, 1)
				return s.Renew(t.Context(), []dibs.Renewal{{Key: first.Key, Token: first.Token, TTL: time.Minute}}, errs) == nil && errs[0] == nil
			})
			wire.Hang()
			start = time.Now()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("closing took %v", took)
			}
			wire.Mend()
		})
	}
}

// TestDialLimit: who connects to a server that says nothing gives up, and sooner where
// another one may have taken its place by then: twice in a row, as long as it is not yet
// known which, is still less than a waiter puts up with.
func TestDialLimit(t *testing.T) {
	t.Parallel()
	wire := servertest.NewWire(t, servertest.Redis(t, nil).Addr())
	wire.Hang()
	ended := make(chan string, 2)
	for _, stall := range []time.Duration{callLimit, stallLimit} {
		d := newDialer("tcp", stall, time.Minute)
		defer d.leave()
		go func() {
			_, err := d.dial(t.Context(), wire.Addr(), &net.Dialer{}, nil)
			ended <- err.Error()
		}()
	}
	for _, want := range []string{"said nothing for 2s", "said nothing for 3s"} {
		if said := <-ended; !strings.Contains(said, want) {
			t.Errorf("%q ended; it should be the one that %s", said, want)
		}
	}
}

// TestCloseEndsEveryConnection: also one that the client has lost sight of is ended
// when the store is closed.
func TestCloseEndsEveryConnection(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	conn, err := s.own.dial(t.Context(), server.Addr(), &net.Dialer{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, want net.ErrClosed", err)
	}
}

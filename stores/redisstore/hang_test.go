package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

// TestHang: a call to a server that says nothing any more ends by itself, and closing
// does not wait for the server. When the server is back all continues.
func TestHang(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"asked", "waited for"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := servertest.NewWire(t, sharedRedis().Addr())
			s := openWithin(t, "redis://"+w.Addr()+"?prefix="+testkit.Own(), nil, 0)
			first := lock("key")
			mustGrant(t, s, first)
			if what == "waited for" {
				mustWait(t, s, lock("key", queued)) // there is a subscription now
			}
			w.Set(wire.Trouble{Hold: true}, nil)
			if _, err := claim(t, s, lock("other")); !errors.Is(err, ErrUnreachable) {
				t.Errorf("the claim ended with %v; want ErrUnreachable", err)
			}
			w.Mend()
			testkit.Eventually(t, "it is there again", func() bool {
				answer, err := renew(t, s, first)
				return answer == nil && err == nil
			})
			w.Set(wire.Trouble{Hold: true}, nil)
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			testkit.Check(t, testkit.Await(t, "the end of Close", closed))
			w.Mend()
		})
	}
}

// TestDialLimit: a dialer gives up a server that says nothing, and does so sooner where
// another server may have taken its place.
func TestDialLimit(t *testing.T) {
	t.Parallel()
	for stall, want := range map[time.Duration]time.Duration{callLimit: dialLimit, stallLimit: stallLimit} {
		d := newDialer("tcp", stall)
		d.leave()
		if d.limit != want {
			t.Errorf("where an answer may take %v a connection may take %v; want %v", stall, d.limit, want)
		}
	}
	w := servertest.NewWire(t, sharedRedis().Addr())
	w.Set(wire.Trouble{Hold: true}, nil)
	d := newDialer("tcp", 50*time.Millisecond)
	defer d.leave()
	_, err := d.dial(t.Context(), w.Addr(), &net.Dialer{}, nil)
	// On a busy machine the limit can also end the connecting.
	if err == nil || !strings.Contains(err.Error(), "has not answered for 50ms") && !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("it ended with %v", err)
	}
}

// TestCloseEndsEveryConnection: closing the store also ends a connection that the client
// has lost sight of.
func TestCloseEndsEveryConnection(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	conn, err := s.own.dial(t.Context(), sharedRedis().Addr(), &net.Dialer{}, nil)
	testkit.Must(t, err)
	testkit.Must(t, conn.SetReadDeadline(time.Now().Add(testkit.Limit)))
	testkit.Must(t, s.Close())
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, want net.ErrClosed", err)
	}
}

// TestSubscriptionToAServerThatHangs: while the connection for wake-ups is being made, all other
// calls go on.
func TestSubscriptionToAServerThatHangs(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	dialled, mended := make(chan struct{}, 1), make(chan struct{})
	defer close(mended)
	s := overClient(t, rueidis.ClientOption{
		InitAddress: []string{sharedRedis().Addr()}, DisableCache: true, PipelineMultiplex: -1,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if hangs.Load() {
				dialled <- struct{}{}
				<-mended
			}
			return d.DialContext(ctx, "tcp", addr)
		},
	})
	mustGrant(t, s, lock("key"))
	hangs.Store(true)
	mustWait(t, s, lock("key", queued))
	testkit.Await(t, "the connection for wake-ups", dialled)
	answered := make(chan error, 1)
	go func() {
		_, err := claim(t, s, lock("other"))
		answered <- err
	}()
	testkit.Check(t, testkit.Await(t, "the answer to another claim", answered))
}

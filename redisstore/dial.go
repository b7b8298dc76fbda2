package redisstore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/backend"
)

const (
	// dialLimit bounds the making of a connection, up to the first word of the server. Where
	// others can replace that, stallLimit does: who connects does not hear of its successor.
	dialLimit = 3 * time.Second
	// leaveLimit is how long servers have to let go of a store that is closed.
	leaveLimit = time.Second
)

// dialer makes the connections of a client that Open made. It knocks before it
// hands one over: who is not Redis, or says nothing, is told apart from a server
// that is down.
type dialer struct {
	network string
	limit   time.Duration   // of a connection's making
	life    context.Context // ends with the store, and so do attempts under way
	end     context.CancelFunc

	mu    sync.Mutex
	conns map[*openConn]struct{}
}

// openConn is a connection that is open.
type openConn struct {
	net.Conn
	d *dialer
}

// Close implements net.Conn.
func (c *openConn) Close() error {
	c.d.mu.Lock()
	delete(c.d.conns, c)
	c.d.mu.Unlock()
	return c.Conn.Close()
}

// newDialer returns a dialer of servers that may owe an answer for stall.
func newDialer(network string, stall time.Duration) *dialer {
	d := &dialer{network: network, limit: min(dialLimit, stall), conns: make(map[*openConn]struct{})}
	d.life, d.end = context.WithCancel(context.Background())
	return d
}

// leave ends what is being dialled, and a moment later what does not let go, or what
// the client has lost sight of, as it may in a failover.
func (d *dialer) leave() {
	d.end()
	time.AfterFunc(leaveLimit, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for c := range d.conns {
			_ = c.Conn.Close() // whoever has it closes it once more
		}
	})
}

// dial is a rueidis.ClientOption.DialCtxFn.
func (d *dialer) dial(ctx context.Context, addr string, netDialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	conn, err := netDialer.DialContext(ctx, d.network, addr)
	if err != nil {
		return nil, &backend.Fault{Is: ErrUnreachable, Text: err.Error()}
	}
	if config != nil {
		if conn, err = handshake(ctx, d.limit, conn, addr, config); err != nil {
			return nil, err
		}
	}
	if err := knock(ctx, d.limit, conn, addr, config != nil); err != nil {
		conn.Close()
		return nil, err
	}
	c := &openConn{conn, d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns[c] = struct{}{}
	return c, nil
}

// handshake makes a connection one over TLS, or closes it.
func handshake(ctx context.Context, limit time.Duration, conn net.Conn, addr string, config *tls.Config) (net.Conn, error) {
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		config = config.Clone()
		config.ServerName = host
	}
	secure := tls.Client(conn, config)
	err := secure.HandshakeContext(ctx)
	if err == nil {
		return secure, nil
	}
	conn.Close()
	if ctx.Err() != nil {
		return nil, &backend.Fault{Is: ErrUnreachable, Text: silent(addr, limit), Cure: "it hangs, or does not speak TLS: write redis for rediss"}
	}
	cure := "is it the right address?"
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		cure = "it does not speak TLS: write redis for rediss"
	} else if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		cure = "name whom to trust with ?ca=FILE, and the name in the certificate with ?server-name="
	}
	return nil, &backend.Fault{Is: ErrUnreachable, Text: addr + ": " + err.Error(), Cure: cure}
}

// refusals are first words that no other will follow.
var refusals = [][]byte{[]byte("-DENIED"), []byte("-ERR max number of clients")}

// knock sees to it that who answers is a Redis.
func knock(ctx context.Context, limit time.Duration, conn net.Conn, addr string, secure bool) error {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return &backend.Fault{Is: ErrUnreachable, Text: addr + ": " + err.Error()}
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	answer, err := exchange(conn, "*1\r\n$4\r\nPING\r\n")
	said := string(bytes.TrimSpace(answer))
	if len(said) > 80 {
		said = said[:80] + "…"
	}
	switch {
	case err == nil && bytes.Equal(answer, []byte("+PONG\r\n")):
	case err == nil && answer[0] == '-':
		for _, r := range refusals {
			if bytes.HasPrefix(answer, r) {
				return &backend.Fault{Is: ErrUnauthorized, Text: said[1:], Cure: "the server takes no connection of ours"}
			}
		}
		// It wants a password, or loads its data: the client finds out.
	case len(answer) > 0:
		cure := "is it the right address?"
		if answer[0] == 0x15 { // an alert
			cure = "it seems to speak TLS: write rediss for redis"
		}
		return &backend.Fault{Is: ErrUnsupported, Text: fmt.Sprintf("%s is not a Redis, it says %q", addr, said), Cure: cure}
	case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded):
		return &backend.Fault{Is: ErrUnreachable, Text: silent(addr, limit), Cure: "it hangs, or is not a Redis"}
	case secure:
		return &backend.Fault{Is: ErrUnreachable, Text: addr + " hung up: " + err.Error(), Cure: "it may want a certificate: ?cert=FILE&key=FILE"}
	default:
		return &backend.Fault{Is: ErrUnreachable, Text: addr + " hung up: " + err.Error(), Cure: "it may speak TLS (write rediss for redis), or refuse this host"}
	}
	return conn.SetDeadline(time.Time{})
}

func silent(addr string, limit time.Duration) string {
	return fmt.Sprintf("%s takes connections, but said nothing for %v", addr, limit)
}

// exchange sends a request and returns the first line of the answer, or its beginning,
// which has at least one byte if there is no error.
func exchange(conn net.Conn, request string) ([]byte, error) {
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	answer, err := bufio.NewReaderSize(conn, 512).ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		err = nil
	}
	return answer, err
}

// security returns the TLS settings of an address, nil without TLS.
func (a *Address) security() (*tls.Config, error) {
	if !a.tls {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.serverName, InsecureSkipVerify: a.skipVerify}
	if a.ca != "" {
		pem, err := os.ReadFile(a.ca)
		if err != nil {
			return nil, fmt.Errorf("redisstore: ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("redisstore: ca: %s has no certificate in PEM", a.ca)
		}
	}
	if a.cert != "" {
		pair, err := tls.LoadX509KeyPair(a.cert, a.key)
		if err != nil {
			return nil, fmt.Errorf("redisstore: cert and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

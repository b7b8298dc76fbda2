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
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store/storekit"
)

const (
	// dialLimit bounds the time to connect, up to the server's first answer. If another
	// server can replace this one, stallLimit bounds it, because a client that connects
	// does not learn of the successor.
	dialLimit = 3 * time.Second
	// leaveLimit is the time from Close until open connections are cut.
	leaveLimit = time.Second
)

// dialer makes the connections of a client that Open made. It pings each connection
// first, so that a server that is not Redis, or hangs, gets another error than one that
// is down.
type dialer struct {
	network string
	limit   time.Duration   // on the time to connect
	closing context.Context // ends when the store closes
	end     context.CancelFunc

	mu    sync.Mutex
	conns map[*openConn]struct{}
}

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

// newDialer returns a dialer of servers that may take at most stall for an answer.
func newDialer(network string, stall time.Duration) *dialer {
	d := &dialer{network: network, limit: min(dialLimit, stall), conns: make(map[*openConn]struct{})}
	d.closing, d.end = context.WithCancel(context.Background())
	return d
}

// leave ends attempts to connect at once, and after leaveLimit the connections that are
// still open. The client may have lost some of those in a failover.
func (d *dialer) leave() {
	d.end()
	time.AfterFunc(leaveLimit, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for c := range d.conns {
			_ = c.Conn.Close() // the client may close it again
		}
	})
}

// dial is a rueidis.ClientOption.DialCtxFn.
func (d *dialer) dial(ctx context.Context, addr string, netDialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	defer context.AfterFunc(d.closing, cancel)()
	conn, err := netDialer.DialContext(ctx, d.network, addr)
	if err != nil {
		return nil, &storekit.Fault{Is: ErrUnreachable, Text: err.Error(), Cure: storekit.NotThere}
	}
	if config != nil {
		if conn, err = handshake(ctx, d.limit, conn, addr, config); err != nil {
			return nil, err
		}
	}
	if err := ping(ctx, d.limit, conn, addr, config != nil); err != nil {
		conn.Close()
		return nil, err
	}
	c := &openConn{conn, d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns[c] = struct{}{}
	return c, nil
}

// handshake begins TLS on a connection, or closes it.
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
		return nil, &storekit.Fault{Is: ErrUnreachable, Text: silent(addr, limit), Cure: "it hangs, or does not speak TLS: write redis instead of rediss"}
	}
	cure := "is it the right address?"
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		cure = "it does not speak TLS: write redis instead of rediss"
	} else if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		cure = "set the certificate authority with ?ca=FILE, and the name in the certificate with ?server-name="
	}
	return nil, &storekit.Fault{Is: ErrUnreachable, Text: addr + ": " + err.Error(), Cure: cure}
}

// refusals are first answers after which the server closes the connection.
var refusals = []struct {
	begins string
	is     error
	cure   string
}{
	{"-DENIED", ErrUnauthorized, "the server refuses connections from this host"},
	{"-ERR max number of clients", ErrCrowded, crowdedCure},
}

// ping checks that the server is a Redis.
func ping(ctx context.Context, limit time.Duration, conn net.Conn, addr string, secure bool) error {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return &storekit.Fault{Is: ErrUnreachable, Text: addr + ": " + err.Error()}
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	answer, err := exchange(conn, "*1\r\n$4\r\nPING\r\n")
	message := string(bytes.TrimSpace(answer))
	if len(message) > 80 {
		message = message[:80] + "…"
	}
	switch {
	case err == nil && bytes.Equal(answer, []byte("+PONG\r\n")):
	case err == nil && answer[0] == '-':
		for _, r := range refusals {
			if strings.HasPrefix(message, r.begins) {
				return &storekit.Fault{Is: r.is, Text: message[1:], Cure: r.cure}
			}
		}
		// It wants a password, or loads its data: the client sees that itself.
	case len(answer) > 0:
		cure := "is it the right address?"
		if answer[0] == 0x15 { // an alert
			cure = "it seems to speak TLS: write rediss instead of redis"
		}
		return &storekit.Fault{Is: ErrUnsupported, Text: fmt.Sprintf("%s is not a Redis; it answers %q", addr, message), Cure: cure}
	case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded):
		return &storekit.Fault{Is: ErrUnreachable, Text: silent(addr, limit), Cure: "it hangs, or is not a Redis"}
	case secure:
		return &storekit.Fault{Is: ErrUnreachable, Text: addr + " hung up: " + err.Error(), Cure: "it may want a certificate: ?cert=FILE&key=FILE"}
	default:
		return &storekit.Fault{Is: ErrUnreachable, Text: addr + " hung up: " + err.Error(), Cure: "it may speak TLS (write rediss instead of redis), or refuse this host"}
	}
	return conn.SetDeadline(time.Time{})
}

func silent(addr string, limit time.Duration) string {
	return fmt.Sprintf("%s accepts connections, but has not answered for %v", addr, limit)
}

// exchange sends a request and returns the first line of the answer, or its beginning.
// Without an error, that is at least one byte.
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

// security returns the TLS settings of an address, or nil without TLS.
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

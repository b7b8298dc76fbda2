//go:build unix

package servertest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// RedisError is an error answer of the server, such as "NOSCRIPT No matching script".
type RedisError string

func (e RedisError) Error() string { return string(e) }

// A RedisConn is a connection to a Redis server, with RESP2. Use it from one goroutine at
// a time.
type RedisConn struct {
	// Timeout bounds each Do and each Receive. Default: a minute.
	Timeout time.Duration

	conn net.Conn
	r    *bufio.Reader
}

// dialRedis connects to a server and authenticates if a password is given.
func dialRedis(addr string, security *tls.Config, user, password string) (*RedisConn, error) {
	dialer := &net.Dialer{Timeout: waitLimit}
	var conn net.Conn
	var err error
	if security != nil {
		conn, err = tls.DialWithDialer(dialer, "tcp", addr, security)
	} else {
		conn, err = dialer.Dial("tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	c := &RedisConn{Timeout: waitLimit, conn: conn, r: bufio.NewReader(conn)}
	if password != "" {
		if _, err := c.Do("AUTH", user, password); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Do sends a command and returns the answer: a string, an int64, nil, or a []any of these
// and of RedisErrors. An error answer is returned as a RedisError. Arguments other than
// string and []byte are formatted with fmt.Sprint.
func (c *RedisConn) Do(args ...any) (any, error) {
	if err := c.conn.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(appendRequest(nil, args)); err != nil {
		return nil, err
	}
	return c.receive()
}

// Receive returns the next answer, for commands with several or later answers, such as
// SUBSCRIBE.
func (c *RedisConn) Receive() (any, error) {
	if err := c.conn.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
		return nil, err
	}
	return c.receive()
}

// info returns a field of INFO everything, or "".
func (c *RedisConn) info(field string) (string, error) {
	answer, err := c.Do("INFO", "everything")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(fmt.Sprint(answer)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", nil
}

// Close closes the connection.
func (c *RedisConn) Close() error { return c.conn.Close() }

func (c *RedisConn) receive() (any, error) {
	answer, err := readAnswer(c.r)
	if e, ok := answer.(RedisError); ok && err == nil {
		return nil, e
	}
	return answer, err
}

// appendRequest appends a command in RESP: an array of strings.
func appendRequest(b []byte, args []any) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(args))
	for _, arg := range args {
		var text []byte
		switch arg := arg.(type) {
		case string:
			text = []byte(arg)
		case []byte:
			text = arg
		default:
			text = fmt.Append(nil, arg)
		}
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(text), text)
	}
	return b
}

// readAnswer reads one answer. An error answer is returned as a RedisError in its place.
func readAnswer(r *bufio.Reader) (any, error) { return readNested(r, 0) }

// deepest bounds the nesting of answers; MULTI around COMMAND has about five levels.
const deepest = 32

func readNested(r *bufio.Reader, depth int) (any, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	text, whole := bytes.CutSuffix(line, []byte("\r\n"))
	if !whole || len(text) == 0 || depth > deepest {
		return nil, strange(line)
	}
	kind, rest := text[0], string(text[1:])
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return RedisError(rest), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
		return nil, strange(line)
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		return readString(r, n)
	case kind == '*':
		answers := []any{}
		for range n {
			answer, err := readNested(r, depth+1)
			if err != nil {
				return nil, err
			}
			answers = append(answers, answer)
		}
		return answers, nil
	}
	return nil, strange(line)
}

// readString reads n bytes and the line end. Its memory grows with the data, so a wrong n
// does no harm.
func readString(r *bufio.Reader, n int64) (any, error) {
	var b strings.Builder
	if _, err := io.CopyN(&b, r, n); err != nil {
		return nil, err
	}
	end := make([]byte, len("\r\n"))
	if _, err := io.ReadFull(r, end); err != nil {
		return nil, err
	}
	if string(end) != "\r\n" {
		return nil, strange(end)
	}
	return b.String(), nil
}

func strange(line []byte) error {
	return errors.New("not an answer in RESP: " + strconv.Quote(string(line)))
}

// A certificate is the self-signed certificate of all servers of this process. Their
// clients, replicas and peers trust it.
type certificate struct {
	cert, key []byte // PEM
	client    *tls.Config
}

// testCertificate returns the process's certificate.
var testCertificate = sync.OnceValues(newCertificate)

// newCertificate makes a certificate for the loopback addresses, for servers and clients,
// and for clocks that are a day off.
func newCertificate() (*certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "dibs test"},
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().Add(7 * 24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	c := &certificate{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}
	pair, err := tls.X509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.cert)
	c.client = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "127.0.0.1"}
	return c, nil
}

// write writes the certificate into the folder as cert.pem and key.pem.
func (c *certificate) write(f *folder) error {
	if err := os.WriteFile(f.join("cert.pem"), c.cert, 0o600); err != nil {
		return err
	}
	return os.WriteFile(f.join("key.pem"), c.key, 0o600)
}

// A client is a database's command line client. It shares no code with the tested code.
type client struct {
	path string
	args []string
	env  []string // complete: the user's settings have no effect
}

// run runs the client with more arguments and returns its output. Its errors have the
// client's own text.
func (c *client) run(args ...string) (string, error) {
	// Not the test's context, because cleanups use it, too.
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, append(c.args[:len(c.args):len(c.args)], args...)...)
	cmd.Env = append([]string{"LC_ALL=C", "PATH=/usr/bin:/bin"}, c.env...)
	var out, failure strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &failure
	err := cmd.Run()
	switch {
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("no answer within %v", waitLimit)
	case failure.Len() > 0:
		return "", errors.New(strings.TrimSpace(failure.String()))
	default:
		return "", err
	}
}

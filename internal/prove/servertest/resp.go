//go:build unix

package servertest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
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

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

// answerTime bounds one exchange with a server; see RedisConn.Timeout.
const answerTime = 10 * time.Second

// RedisError is an error that the server answered, such as
// "NOSCRIPT No matching script".
type RedisError string

func (e RedisError) Error() string { return string(e) }

// A RedisConn is one connection to a Redis server, speaking RESP2. It is not
// for several goroutines at once.
type RedisConn struct {
	// Timeout bounds each Do and each Receive; 10 s unless set.
	Timeout time.Duration

	conn net.Conn
	r    *bufio.Reader
}

// dialRedis connects to a server and proves who we are where a password is
// given.
func dialRedis(addr string, security *tls.Config, user, password string) (*RedisConn, error) {
	dialer := &net.Dialer{Timeout: answerTime}
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
	c := &RedisConn{Timeout: answerTime, conn: conn, r: bufio.NewReader(conn)}
	if password != "" {
		if _, err := c.Do("AUTH", user, password); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Do sends a command and returns the answer: a string, an int64, nil, or a
// []any of these and of RedisErrors. An error that the server answers is
// returned as a RedisError. Arguments that are neither string nor []byte are
// sent as fmt.Sprint prints them.
func (c *RedisConn) Do(args ...any) (any, error) {
	if err := c.conn.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(appendRequest(nil, args)); err != nil {
		return nil, err
	}
	return c.receive()
}

// Receive returns the next answer, after a command that has several or that
// others answer later, such as SUBSCRIBE.
func (c *RedisConn) Receive() (any, error) {
	if err := c.conn.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
		return nil, err
	}
	return c.receive()
}

// info returns a field of INFO everything, "" where there is none.
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

// appendRequest appends a command as RESP writes it: an array of strings.
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

// readAnswer reads one answer; an error of the server's comes as a RedisError
// in the answer's place.
func readAnswer(r *bufio.Reader) (any, error) { return readNested(r, 0) }

// deepest is how far answers may be nested: MULTI around COMMAND has five
// levels or so.
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

// readString reads n bytes and the end of their line. What is set aside for
// them grows as they come, so that a wrong n costs nothing.
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

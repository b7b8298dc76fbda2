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
func readAnswer(r *bufio.Reader) (any, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || len(line) == 0 {
		return nil, errors.New("not an answer in RESP: " + strconv.Quote(string(line)))
	}
	text := string(line[1:])
	switch line[0] {
	case '+':
		return text, nil
	case '-':
		return RedisError(text), nil
	case ':':
		return strconv.ParseInt(text, 10, 64)
	case '$':
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, err
		}
		b := make([]byte, n+len("\r\n"))
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		return string(b[:n]), nil
	case '*':
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, err
		}
		answers := make([]any, n)
		for i := range answers {
			if answers[i], err = readAnswer(r); err != nil {
				return nil, err
			}
		}
		return answers, nil
	}
	return nil, errors.New("not an answer in RESP: " + strconv.Quote(string(line)))
}

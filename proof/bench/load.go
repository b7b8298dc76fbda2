package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// connections is how many clients load an HTTP server at once.
const connections = 64

// body is what every request carries, and every answer.
const body = `{"amount":4200,"currency":"eur","customer":"cus_8841","description":"order 100234"}`

// A load is what clients send: a POST with a key of its own each time, or with
// one that each client repeats.
type load struct {
	addr string
	keys func(connection, i int) string
}

// A client is one connection of a load.
type client struct {
	conn net.Conn
	n    int // which of the load's clients it is
	sent int
	in   []byte // what has come of the answer
	out  []byte // the request
}

// perSecond sends the load over kept-alive connections for d and returns the
// answers per second.
func (l load) perSecond(ctx context.Context, d time.Duration) (float64, error) {
	clients := make([]*client, connections)
	for n := range clients {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", l.addr)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		clients[n] = &client{conn: conn, n: n}
	}
	start := time.Now()
	answers, err := drive(clients, start.Add(d), l.request)
	if err == nil {
		err = ctx.Err()
	}
	return float64(answers) / time.Since(start).Seconds(), err
}

// request makes the client's next request.
func (l load) request(c *client) []byte {
	b := c.out[:0]
	b = append(b, "POST /charges HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\nIdempotency-Key: "...)
	b = append(b, l.keys(c.n, c.sent)...)
	b = append(b, "\r\n\r\n"...)
	b = append(b, body...)
	c.out = b
	c.sent++
	return b
}

var (
	headEnd       = []byte("\r\n\r\n")
	contentLength = []byte("\r\nContent-Length: ")
)

// answered reports whether all of an answer, which must be a 201 with a
// Content-Length, has come.
func (c *client) answered() (bool, error) {
	end := bytes.Index(c.in, headEnd)
	if end < 0 {
		return false, nil
	}
	head := c.in[:end+2]
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 201")) {
		line, _, _ := bytes.Cut(head, []byte("\r"))
		return false, fmt.Errorf("the server answered %q", line)
	}
	_, after, ok := bytes.Cut(head, contentLength)
	if !ok {
		return false, errors.New("the answer has no Content-Length")
	}
	length := 0
	for _, digit := range after {
		if digit < '0' || digit > '9' {
			break
		}
		length = 10*length + int(digit-'0')
	}
	switch total := end + len(headEnd) + length; {
	case len(c.in) < total:
		return false, nil
	case len(c.in) > total:
		return false, errors.New("the server sent more than an answer")
	}
	c.in = c.in[:0]
	return true, nil
}

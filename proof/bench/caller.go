package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// A caller is a client of an HTTP API on one connection.
type caller struct {
	conn net.Conn
	in   *bufio.Reader
}

// dialCallers connects n callers.
func dialCallers(ctx context.Context, network, addr string, n int) ([]*caller, func(), error) {
	var callers []*caller
	end := func() {
		for _, c := range callers {
			c.conn.Close()
		}
	}
	for range n {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			end()
			return nil, nil, err
		}
		callers = append(callers, &caller{conn, bufio.NewReader(conn)})
	}
	return callers, end, nil
}

// send sends a call.
func (c *caller) send(path, body string) error {
	_, err := fmt.Fprintf(c.conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	return err
}

// call sends a call and returns its answer, which must have want in it.
func (c *caller) call(path, body, want string) (string, error) {
	if err := c.send(path, body); err != nil {
		return "", err
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || !strings.Contains(string(text), want)) {
		err = fmt.Errorf("%s answered %s: %s", path, res.Status, text)
	}
	return string(text), err
}

// read returns what is at a URL.
func read(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

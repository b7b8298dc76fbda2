package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// connections is how many clients load an HTTP server at once.
const connections = 64

// body is what every request carries, and every answer.
const body = `{"amount":4200,"currency":"eur","customer":"cus_8841","description":"order 100234"}`

// A load is what clients send: a POST with a key of its own each time, or with
// one of a few keys.
type load struct {
	addr string
	keys func(connection, i int) string
}

// perSecond sends the load over kept-alive connections for d and returns the
// answers per second. The clients are as small as they can be, so that what is
// measured is the server.
func (l load) perSecond(ctx context.Context, d time.Duration) (float64, error) {
	var (
		mu    sync.Mutex
		total int
		first error
	)
	deadline := time.Now().Add(d)
	start := time.Now()
	var wg sync.WaitGroup
	for n := range connections {
		wg.Go(func() {
			sent, err := l.connection(ctx, n, deadline)
			mu.Lock()
			defer mu.Unlock()
			total += sent
			if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	return float64(total) / time.Since(start).Seconds(), first
}

func (l load) connection(ctx context.Context, n int, deadline time.Time) (int, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline.Add(10 * time.Second)); err != nil {
		return 0, err
	}
	r := bufio.NewReader(conn)
	var request []byte
	for i := 0; ; i++ {
		if time.Now().After(deadline) {
			return i, ctx.Err()
		}
		request = append(request[:0], "POST /charges HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "...)
		request = strconv.AppendInt(request, int64(len(body)), 10)
		if l.keys != nil {
			request = append(request, "\r\nIdempotency-Key: "...)
			request = append(request, l.keys(n, i)...)
		}
		request = append(request, "\r\n\r\n"...)
		request = append(request, body...)
		if _, err := conn.Write(request); err != nil {
			return i, err
		}
		if err := answered(r); err != nil {
			return i, err
		}
	}
}

// answered reads one answer, which must be a 201 with a Content-Length.
func answered(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 201")) {
		return fmt.Errorf("the server answered %q", line)
	}
	length := -1
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return fmt.Errorf("the answer has no Content-Length")
	}
	_, err = r.Discard(length)
	return err
}

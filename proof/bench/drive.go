package main

import (
	"sync"
	"time"
)

// drive lets each client send a request, and the next one when it is answered,
// until the deadline, and returns how many were answered.
func drive(clients []*client, deadline time.Time, next func(*client) []byte) (int, error) {
	var (
		mu      sync.Mutex
		answers int
		first   error
		all     sync.WaitGroup
	)
	for _, c := range clients {
		all.Go(func() {
			n, err := c.drive(deadline, next)
			mu.Lock()
			defer mu.Unlock()
			answers += n
			if first == nil {
				first = err
			}
		})
	}
	all.Wait()
	return answers, first
}

// drive is one client's part.
func (c *client) drive(deadline time.Time, next func(*client) []byte) (int, error) {
	buffer := make([]byte, 64<<10)
	if err := c.conn.SetDeadline(deadline.Add(10 * time.Second)); err != nil { // of a server that pauses
		return 0, err
	}
	for answers := 0; ; answers++ {
		if time.Now().After(deadline) {
			return answers, nil
		}
		if _, err := c.conn.Write(next(c)); err != nil {
			return answers, err
		}
		for whole := false; !whole; {
			n, err := c.conn.Read(buffer)
			if err != nil {
				return answers, err
			}
			c.in = append(c.in, buffer[:n]...)
			if whole, err = c.answered(); err != nil {
				return answers, err
			}
		}
	}
}

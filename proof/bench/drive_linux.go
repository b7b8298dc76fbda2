package main

import (
	"errors"
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// drive lets each client send a request, and the next one when it is answered,
// until the deadline, and returns how many were answered. It is one thread that
// waits for all of them at once, so that the clients cost as little as they can,
// and what is measured is the server.
func drive(clients []*client, deadline time.Time, next func(*client) []byte) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(poll)
	fds := make([]int, len(clients))
	for i, c := range clients {
		file, err := c.conn.File() // a duplicate, which the runtime does not wait on
		if err != nil {
			return 0, err
		}
		defer file.Close()
		fds[i] = int(file.Fd())
		if err := unix.SetNonblock(fds[i], true); err != nil {
			return 0, err
		}
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
		if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fds[i], &event); err != nil {
			return 0, err
		}
		if err := write(fds[i], next(c)); err != nil {
			return 0, err
		}
	}
	answers, waiting := 0, len(clients)
	events := make([]unix.EpollEvent, len(clients))
	buffer := make([]byte, 64<<10)
	for waiting > 0 {
		n, err := unix.EpollWait(poll, events, 10_000)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return answers, err
		}
		if n == 0 {
			return answers, errors.New("the server has not answered for 10 s")
		}
		over := time.Now().After(deadline)
		for _, event := range events[:n] {
			c, fd := clients[event.Fd], fds[event.Fd]
			got, err := unix.Read(fd, buffer)
			switch {
			case err == unix.EAGAIN || err == unix.EINTR:
				continue
			case err != nil:
				return answers, err
			case got == 0:
				return answers, io.ErrUnexpectedEOF
			}
			c.in = append(c.in, buffer[:got]...)
			whole, err := c.answered()
			if err != nil {
				return answers, err
			}
			if !whole {
				continue
			}
			answers++
			if over {
				waiting--
				continue
			}
			if err := write(fd, next(c)); err != nil {
				return answers, err
			}
		}
	}
	return answers, nil
}

// write writes all of a request, which always fits into the socket's buffer.
func write(fd int, p []byte) error {
	n, err := unix.Write(fd, p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

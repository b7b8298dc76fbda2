//go:build unix

package servertest

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// A link is one connection through a Wire.
type link struct {
	wire   *Wire
	client *net.TCPConn
	closed chan struct{} // closed by abort

	end    sync.Once
	loss   *loss // the reply to lose; under wire.mu
	mu     sync.Mutex
	server *net.TCPConn // nil until connected
}

// parcel is the data of one read, and when it is due at the other end.
type parcel struct {
	data []byte
	due  time.Time
}

// run connects the link and copies both directions until both have ended.
func (l *link) run() {
	defer func() {
		l.abort()
		l.wire.mu.Lock()
		delete(l.wire.links, l)
		l.wire.mu.Unlock()
	}()
	if !l.clear() {
		return
	}
	conn, err := net.DialTimeout("tcp", l.wire.target, waitLimit)
	if err != nil {
		return // the client is reset, as without a wire
	}
	server := conn.(*net.TCPConn)
	if !l.connected(server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.requests(server, l.read(l.client)) })
	both.Go(func() { l.replies(server, l.read(server)) })
	both.Wait()
}

// connected keeps the server's connection, unless the link has ended.
func (l *link) connected(server *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		server.Close()
		return false
	default:
		l.server = server
		return true
	}
}

// abort resets both ends.
func (l *link) abort() {
	l.end.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.closed)
		for _, conn := range []*net.TCPConn{l.client, l.server} {
			if conn != nil {
				_ = conn.SetLinger(0) // fails on a closed connection
				conn.Close()
			}
		}
	})
}

// requests copies from the client to the server.
func (l *link) requests(server *net.TCPConn, from <-chan parcel) {
	var before []byte // the end of the data so far, because a text may be split
	for p := range from {
		if !l.wait(p.due) || !l.clear() {
			return
		}
		// Mark before sending, so that the reply cannot pass.
		before = l.mark(append(before, p.data...))
		if _, err := server.Write(p.data); err != nil {
			return
		}
	}
	_ = server.CloseWrite() // fails on a closed connection
}

// mark looks for the request whose reply will be lost. It returns the part of the data
// that the next call needs.
func (l *link) mark(seen []byte) []byte {
	w := l.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.loss == nil {
		return nil
	}
	if bytes.Contains(seen, []byte(w.loss.text)) {
		l.loss, w.loss = w.loss, nil
		return nil
	}
	keep := min(len(seen), max(len(w.loss.text)-1, 0))
	return bytes.Clone(seen[len(seen)-keep:])
}

// replies copies from the server to the client.
func (l *link) replies(server *net.TCPConn, from <-chan parcel) {
	for p := range from {
		if !l.wait(p.due) || !l.clear() {
			return
		}
		l.wire.mu.Lock()
		loss, mute := l.loss, l.wire.mute
		l.wire.mu.Unlock()
		if loss != nil {
			// A server reads all requests before it sees the end and closes, so it
			// has executed everything then.
			_ = server.CloseWrite()
			for range from {
			}
			select {
			case <-l.closed: // cut meanwhile: the outcome is unknown
			default:
				l.abort()
				close(loss.done)
			}
			return
		}
		if mute {
			continue
		}
		if _, err := l.client.Write(p.data); err != nil {
			return
		}
	}
	_ = l.client.CloseWrite()
}

// read reads one end until it closes.
func (l *link) read(conn *net.TCPConn) <-chan parcel {
	parcels := make(chan parcel, 64)
	l.wire.running.Go(func() {
		defer close(parcels)
		buf := make([]byte, 64<<10)
		for {
			n, err := conn.Read(buf)
			if n > 0 {
				l.wire.mu.Lock()
				due := time.Now().Add(l.wire.delay)
				l.wire.mu.Unlock()
				select {
				case parcels <- parcel{bytes.Clone(buf[:n]), due}:
				case <-l.closed:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	return parcels
}

// wait waits until due. It returns false if the link has ended.
func (l *link) wait(due time.Time) bool {
	left := time.Until(due)
	if left <= 0 {
		return true
	}
	select {
	case <-time.After(left):
		return true
	case <-l.closed:
		return false
	}
}

// clear waits while the wire hangs. It returns false if the link has ended.
func (l *link) clear() bool {
	for {
		l.wire.mu.Lock()
		hung, changed := l.wire.hung, l.wire.changed
		l.wire.mu.Unlock()
		if !hung {
			return true
		}
		select {
		case <-changed:
		case <-l.closed:
			return false
		}
	}
}

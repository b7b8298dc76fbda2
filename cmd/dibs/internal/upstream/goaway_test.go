package upstream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Frames of HTTP/2 (RFC 9113, section 6).
const (
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	frameGoAway   = 7

	flagAck       = 1
	flagEndStream = 1
)

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))[1:]
	b = append(b, kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// leaver is an origin that speaks HTTP/2 without TLS. It reads each request whole,
// answers it with the frames that leave makes, and closes the connection.
type leaver struct {
	url  string
	seen atomic.Int64
}

func newLeaver(t *testing.T, leave func(stream uint32) []byte) *leaver {
	t.Helper()
	o := &leaver{}
	o.url = "h2c://" + testkit.Serve(t, func(_ int, c *net.TCPConn) {
		if stream := readStream(c); stream > 0 {
			o.seen.Add(1)
			c.Write(leave(stream))
			io.Copy(io.Discard, c) // until the client closes it
		}
	})
	return o
}

// readStream reads a connection's first request and returns the number of its stream.
func readStream(c net.Conn) uint32 {
	preface := make([]byte, 24)
	if _, err := io.ReadFull(c, preface); err != nil {
		return 0
	}
	c.Write(frame(frameSettings, 0, 0, nil))
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(c, head); err != nil {
			return 0
		}
		kind, flags := head[3], head[4]
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(append([]byte{0}, head[:3]...)))); err != nil {
			return 0
		}
		switch {
		case kind == frameSettings && flags&flagAck == 0:
			c.Write(frame(frameSettings, flagAck, 0, nil))
		case kind <= frameHeaders && flags&flagEndStream != 0: // DATA or HEADERS
			return binary.BigEndian.Uint32(head[5:])
		}
	}
}

// TestNothingThatTheOriginSaysSendsARequestAgain: an origin that has read a request, and
// then says that it has not, has read it once.
func TestNothingThatTheOriginSaysSendsARequestAgain(t *testing.T) {
	goAway := func(code uint32, debug string) func(uint32) []byte {
		return func(uint32) []byte {
			payload := make([]byte, 8) // the last stream that was processed: none
			binary.BigEndian.PutUint32(payload[4:], code)
			return frame(frameGoAway, 0, 0, append(payload, debug...))
		}
	}
	reset := func(code uint32) func(uint32) []byte {
		return func(stream uint32) []byte {
			return frame(frameReset, 0, stream, binary.BigEndian.AppendUint32(nil, code))
		}
	}
	for name, leave := range map[string]func(uint32) []byte{
		"GOAWAY, NO_ERROR":              goAway(0, ""),
		"GOAWAY, debug data":            goAway(2, "REFUSED_STREAM"),
		"GOAWAY, other debug data":      goAway(0, "received Server's graceful shutdown GOAWAY"),
		"GOAWAY, REFUSED_STREAM":        goAway(7, "REFUSED_STREAM"),
		"GOAWAY, PROTOCOL_ERROR":        goAway(1, "http2: server sent GOAWAY"),
		"RST_STREAM, REFUSED_STREAM":    reset(7),
		"RST_STREAM, PROTOCOL_ERROR":    reset(1),
		"RST_STREAM, HTTP_1_1_REQUIRED": reset(13),
	} {
		for _, body := range []string{"", "amount=7"} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, len(body)), func(t *testing.T) {
				origin := newLeaver(t, leave)
				tr := newTransport(t, origin.url, nil)
				_, _, err := roundTrip(tr, request(t, tr, "POST", body))
				if failed, ok := errors.AsType[*Error](err); !ok || failed.Kind != HungUp {
					t.Errorf("the error is %v, want the origin hung up", err)
				}
				if n := origin.seen.Load(); n != 1 {
					t.Errorf("the origin has read the request %d times", n)
				}
			})
		}
	}
}

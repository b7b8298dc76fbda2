package idempotency

import (
	"encoding/binary"
	"errors"
	"os"
	"time"

	"github.com/dibs-go/dibs/internal/slow"
)

// firstMessageLimit is how long a gRPC request may take to end after its first message. A request
// that takes longer streams: it waits for answers before it continues.
const firstMessageLimit = 5 * time.Second

// unaryReader is the body of a gRPC request, which must end soon after its first message.
type unaryReader struct {
	*slow.Reader
	head [5]byte
	n    int // bytes of head
	read int64
	end  time.Time // zero until the first message is there
}

// Read reads from the body. It returns errStream if the body does not end.
func (r *unaryReader) Read(p []byte) (int, error) {
	if r.begun() {
		if r.end.IsZero() {
			r.end = time.Now().Add(firstMessageLimit)
		}
		r.Pause = min(r.Pause, time.Until(r.end))
	}
	n, err := r.Reader.Read(p)
	r.n += copy(r.head[r.n:], p[:n])
	r.read += int64(n)
	if errors.Is(err, os.ErrDeadlineExceeded) && r.begun() {
		err = errStream
	}
	return n, err
}

// begun reports whether the first message is there.
func (r *unaryReader) begun() bool {
	return r.n == len(r.head) && r.read >= int64(len(r.head))+int64(binary.BigEndian.Uint32(r.head[1:]))
}

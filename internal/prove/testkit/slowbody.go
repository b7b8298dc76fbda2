package testkit

import (
	"errors"
	"io"
	"net/http/httptest"
	"time"
)

// SlowBody is the body of a request and the ResponseWriter of its answer, without a network: a read that
// takes beyond the deadline of the connection fails. It serves one goroutine, in a synctest bubble.
type SlowBody struct {
	*httptest.ResponseRecorder
	*io.PipeReader
	To    *io.PipeWriter // what the client sends
	timer *time.Timer
}

// NewSlowBody returns a body of which nothing has been sent.
func NewSlowBody() *SlowBody {
	body, to := io.Pipe()
	return &SlowBody{ResponseRecorder: httptest.NewRecorder(), PipeReader: body, To: to}
}

// SetReadDeadline serves http.ResponseController.
func (s *SlowBody) SetReadDeadline(end time.Time) error {
	if s.timer != nil {
		s.timer.Stop()
	}
	if !end.IsZero() {
		s.timer = time.AfterFunc(time.Until(end), func() { s.CloseWithError(errors.New("the deadline of the connection")) })
	}
	return nil
}

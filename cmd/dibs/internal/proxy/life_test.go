package proxy

import (
	"net"
	"net/http"
	"testing"

	"github.com/dibs-go/dibs/cmd/dibs/internal/framing"
)

// TestLife: who waits for an answer, from a connection's beginning to its end.
func TestLife(t *testing.T) {
	l := newLife()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	for _, end := range []http.ConnState{http.StateClosed, http.StateHijacked} {
		v := &visit{Conn: framing.Conn{Conn: here}}
		l.visits[v] = struct{}{}
		steps := []struct {
			name string
			do   func()
			busy int
		}{
			{"it has come", func() { l.connState(v, http.StateNew) }, 0},
			{"it speaks", func() { l.connState(v, http.StateActive) }, 0},
			{"a handler runs", v.enter, 1},
			{"the answer is on its way", func() { l.leave(v) }, 1},
			{"it is idle", func() { l.connState(v, http.StateIdle) }, 0},
			{"another handler runs", v.enter, 1},
			{"it has ended", func() { l.connState(v, end) }, 0},
		}
		for _, step := range steps {
			step.do()
			if got := l.busy(); got != step.busy {
				t.Errorf("%v, %s: %d are busy; want %d", end, step.name, got, step.busy)
			}
		}
		if len(l.visits) != 0 {
			t.Errorf("%v: the visit is kept", end)
		}
		l.leave(v)
	}
	select {
	case <-l.changed:
		t.Error("it signals although nobody stops it")
	default:
	}
	l.begin()
	v := &visit{}
	v.enter()
	l.leave(v)
	select {
	case <-l.changed:
	default:
		t.Error("it does not signal while it is stopped")
	}
}

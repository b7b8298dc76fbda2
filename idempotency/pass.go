package idempotency

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// A passer is the ResponseWriter of a handler that is not guarded. All it does
// is take the Middleware's own fields off the answer.
type passer struct {
	http.ResponseWriter
	m        *Middleware
	r        *http.Request
	bypassed bool
	headed   bool
	status   int
}

// head prepares the header when it is about to leave.
func (p *passer) head(status int) {
	if p.headed {
		return
	}
	p.headed = status >= 200 || status == http.StatusSwitchingProtocols
	p.status = status
	h := p.Header()
	p.m.count(parseControl(takeOurs(h)))
	if p.bypassed && p.headed {
		h[bypassedField] = []string{bypassedForStore}
	}
}

// end prepares what is left to leave when the handler has returned.
func (p *passer) end() {
	p.head(http.StatusOK)
	takeOurs(p.Header()) // what would go as a trailer
	if p.bypassed {
		p.Header()[bypassedField] = []string{bypassedForStore}
	}
}

func (p *passer) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols && !p.r.ProtoAtLeast(1, 1) {
		return // HTTP/1.0 knows of no such answers (RFC 9110, section 15.2)
	}
	p.head(status)
	p.ResponseWriter.WriteHeader(status)
}

func (p *passer) Write(b []byte) (int, error) {
	p.head(http.StatusOK)
	return p.ResponseWriter.Write(b)
}

func (p *passer) WriteString(s string) (int, error) {
	p.head(http.StatusOK)
	return io.WriteString(p.ResponseWriter, s)
}

func (p *passer) ReadFrom(src io.Reader) (int64, error) {
	p.head(http.StatusOK)
	if r, ok := p.ResponseWriter.(io.ReaderFrom); ok {
		return r.ReadFrom(src)
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{p.ResponseWriter}, src, *buf)
}

func (p *passer) Flush() { _ = p.FlushError() }

func (p *passer) FlushError() error {
	p.head(http.StatusOK)
	return http.NewResponseController(p.ResponseWriter).Flush()
}

func (p *passer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(p.ResponseWriter).Hijack()
}

func (p *passer) Push(target string, o *http.PushOptions) error {
	return push(p.ResponseWriter, target, o)
}

// Unwrap serves http.ResponseController for what is not here.
func (p *passer) Unwrap() http.ResponseWriter { return p.ResponseWriter }

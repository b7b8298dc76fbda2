package conform

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// prefix begins the path of every request, below the path of the target's URL.
const prefix = "/conform/"

// runField is a field of every answer: the number of the request within its case.
const runField = "Conform-Run"

// Origin is the server behind the target. As an http.Handler it serves what the target lets
// through: put it behind a middleware, or use Listen. It is safe for concurrent use.
type Origin struct {
	mu    sync.Mutex
	plays map[string]*play

	server *http.Server // nil unless it listens
	addr   string
}

// play is one case at the origin.
type play struct {
	answers []originAnswer

	mu      sync.Mutex
	seen    []seenRequest
	changed chan struct{} // closed, and made anew, when something was seen
	gates   map[int]chan struct{}
	all     chan struct{} // closed: no request waits any more
	opened  bool
}

// NewOrigin returns an origin that serves the paths that contain /conform/.
func NewOrigin() *Origin { return &Origin{plays: make(map[string]*play)} }

// Listen returns an origin that serves on a TCP address such as 127.0.0.1:3000. Port 0 takes a
// free one. Close ends it.
func Listen(addr string) (*Origin, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("conform: the origin cannot listen on %s, give it another address: %w", addr, err)
	}
	o := NewOrigin()
	o.addr = l.Addr().String()
	o.server = &http.Server{
		Handler:                      o,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            holdLimit,
		ErrorLog:                     log.New(io.Discard, "", 0),
		Protocols:                    new(http.Protocols),
	}
	o.server.Protocols.SetHTTP1(true)
	o.server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = o.server.Serve(l) }() // it ends with Close
	return o, nil
}

// Addr returns the address on which it listens, or "".
func (o *Origin) Addr() string { return o.addr }

// Close ends what Listen began, and every request that is under way.
func (o *Origin) Close() error {
	o.mu.Lock()
	for _, p := range o.plays {
		p.openAll()
	}
	o.mu.Unlock()
	if o.server == nil {
		return nil
	}
	return o.server.Close()
}

// play makes a case known, and sets the answers to its requests.
func (o *Origin) play(id string, answers []originAnswer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.plays[id] = &play{
		answers: answers,
		changed: make(chan struct{}),
		gates:   make(map[int]chan struct{}),
		all:     make(chan struct{}),
	}
}

// await returns the requests of the case that have reached the origin, in order. It waits until
// there are n of them, or ctx ends.
func (p *play) await(ctx context.Context, n int) []seenRequest {
	for {
		p.mu.Lock()
		seen, changed := p.seen[:len(p.seen):len(p.seen)], p.changed
		p.mu.Unlock()
		if len(seen) >= n {
			return seen
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return seen
		}
	}
}

// open lets a request that waits go on, once. Run 0 is all of them, and all later ones.
func (p *play) open(run int) {
	if run == 0 {
		p.openAll()
		return
	}
	p.gate(run) <- struct{}{}
}

// forget ends a case. Its waiting requests go on.
func (o *Origin) forget(id string) {
	o.mu.Lock()
	p := o.plays[id]
	delete(o.plays, id)
	o.mu.Unlock()
	if p != nil {
		p.openAll()
	}
}

func (o *Origin) find(id string) *play {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.plays[id]
}

// ServeHTTP serves what the target let through.
func (o *Origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, rest, _ := strings.Cut(r.URL.Path, prefix)
	id, _, _ := strings.Cut(rest, "/")
	p := o.find(id)
	if p == nil {
		http.Error(w, "The origin of dibs-prove conform knows no such case.", http.StatusNotFound)
		return
	}
	p.serve(w, r, o.server != nil)
}

// serve notes the request, and answers as the case says.
func (p *play) serve(w http.ResponseWriter, r *http.Request, listens bool) {
	body, err := io.ReadAll(r.Body)
	run := p.note(seenRequest{
		Method: r.Method, Target: r.RequestURI, Host: r.Host, Header: r.Header.Clone(),
		Body: body, Trailer: r.Trailer.Clone(), Broken: err != nil,
	})
	a := p.answers[min(run, len(p.answers))-1]
	fill := strings.NewReplacer("{run}", strconv.Itoa(run), "{key}", r.Header.Get("Idempotency-Key"))
	if a.Upgrade != "" && r.Header.Get("Upgrade") != "" && (listens || a.Upgrade != "h2c") {
		upgrade(w, a.Upgrade)
		return
	}
	if a.Raw != nil && listens {
		raw(w, fill.Replace(string(a.Raw)), a.Linger)
		return
	}
	inform(w, a.Early, fill)
	if a.Hold {
		p.wait(run)
	}
	if a.Break == breakBefore {
		panic(http.ErrAbortHandler)
	}
	if r.ProtoMajor > 1 {
		a.Header = withoutConnection(a.Header)
	}
	p.answer(w, run, &a, fill)
}

// withoutConnection returns the fields without Connection and those that it names, because
// HTTP/2 does not have them.
func withoutConnection(fields []fieldLine) []fieldLine {
	hop := []string{"Connection"}
	for _, f := range fields {
		if f.Name == "Connection" {
			hop = append(hop, *f.Value)
		}
	}
	return slices.DeleteFunc(slices.Clone(fields), func(f fieldLine) bool { return slices.Contains(hop, f.Name) })
}

// note counts the request and returns its number.
func (p *play) note(s seenRequest) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Run = len(p.seen) + 1
	p.seen = append(p.seen, s)
	close(p.changed)
	p.changed = make(chan struct{})
	return s.Run
}

// holdLimit ends every wait, if the kit has ended. A case never waits for so long.
const holdLimit = 2 * time.Minute

// wait waits for open. It ignores the request's context, because an application would also
// finish its work.
func (p *play) wait(run int) {
	timer := time.NewTimer(holdLimit)
	defer timer.Stop()
	select {
	case <-p.gate(run):
	case <-p.all:
	case <-timer.C:
	}
}

// gate returns the gate of a request.
func (p *play) gate(run int) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gates[run] == nil {
		p.gates[run] = make(chan struct{}, 100)
	}
	return p.gates[run]
}

func (p *play) openAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.opened {
		p.opened = true
		close(p.all)
	}
}

// answer writes the final answer.
func (p *play) answer(w http.ResponseWriter, run int, a *originAnswer, fill *strings.Replacer) {
	body := []byte(fill.Replace(string(a.Body)))
	if a.Size > 0 {
		body = pattern(min(a.Size, maxPattern))
	}
	h := w.Header()
	addFields(h, a.Header, fill)
	h.Set(runField, strconv.Itoa(run))
	for _, f := range a.Trailer {
		h.Add("Trailer", f.Name)
	}
	status := a.Status
	if status == 0 {
		status = http.StatusCreated
	}
	flush := http.NewResponseController(w).Flush
	whole := len(a.Pieces) == 0 && len(a.Trailer) == 0 && !a.Chunked
	switch {
	case !whole || status == http.StatusNoContent || status == http.StatusNotModified:
	case a.Break == breakWithin:
		h.Set("Content-Length", strconv.Itoa(len(body)+1000))
	default:
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone
	if a.Break == breakWithin {
		_ = flush()
		panic(http.ErrAbortHandler)
	}
	if a.Chunked {
		_ = flush()
	}
	for _, piece := range a.Pieces {
		_ = flush()
		p.wait(run)
		_, _ = io.WriteString(w, fill.Replace(piece))
	}
	addFields(h, a.Trailer, fill)
}

// inform sends informational answers.
func inform(w http.ResponseWriter, early []earlyAnswer, fill *strings.Replacer) {
	h := w.Header()
	for _, e := range early {
		addFields(h, e.Header, fill)
		w.WriteHeader(e.Status)
		clear(h)
	}
}

func addFields(h http.Header, fields []fieldLine, fill *strings.Replacer) {
	for _, f := range fields {
		if f.Value == nil {
			h[f.Name] = nil
			continue
		}
		h.Add(f.Name, fill.Replace(*f.Value))
	}
}

// raw takes the connection over, and writes to it.
func raw(w http.ResponseWriter, text string, linger bool) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // an HTTP/2 connection
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(holdLimit))
	_, _ = io.WriteString(c, text)
	if linger {
		_, _ = io.Copy(io.Discard, rw)
	}
}

// upgrade takes the connection over, and echoes what comes.
func upgrade(w http.ResponseWriter, protocol string) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "The connection cannot be taken over.", http.StatusInternalServerError)
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(holdLimit))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	_, _ = io.Copy(c, rw)
}

// originAnswer is one answer of the origin. In Body and in the values of Header and Trailer, {run} is
// the number of the request within its case, from 1, and {key} is its Idempotency-Key.
type originAnswer struct {
	// Status of the answer. Default: 201.
	Status int
	// Header are the fields, in order. A field without a value is left out, also a Content-Type
	// that a library would guess.
	Header []fieldLine
	// Early are informational answers that come first.
	Early []earlyAnswer
	// Body is the content. If Size is not 0, the content is Size bytes of pattern, at most
	// maxPattern.
	Body []byte
	Size int
	// Trailer has the fields that follow the body.
	Trailer []fieldLine

	// Hold makes the request wait for open before it is answered.
	Hold bool
	// Pieces follow the Body. Each is flushed, and waits for open.
	Pieces []string
	// Chunked leaves Content-Length out.
	Chunked bool
	// Break ends the connection before the answer is whole.
	Break breakPoint
	// Raw is written to the connection instead of all of the above, and the connection ends.
	// With Linger it stays open. An origin without an address of its own ignores it.
	Raw    []byte
	Linger bool
	// Upgrade answers a request for another protocol with 101, and then echoes what comes. An
	// origin without an address of its own ignores h2c, because the server in front of it
	// handles that.
	Upgrade string
}

// breakPoint says where an answer ends that is not whole.
type breakPoint string

// Where an answer breaks off.
const (
	// breakBefore closes the connection without an answer.
	breakBefore breakPoint = "before"
	// breakWithin closes the connection after the Body, with a longer Content-Length.
	breakWithin breakPoint = "within"
)

// fieldLine is one line of a header or a trailer.
type fieldLine struct {
	Name  string
	Value *string // nil: left out on purpose
}

// earlyAnswer is an informational answer.
type earlyAnswer struct {
	Status int
	Header []fieldLine
}

// seenRequest is a request that reached the origin.
type seenRequest struct {
	Run     int // its number within the case, from 1
	Method  string
	Target  string // as it was on the request line
	Host    string
	Header  http.Header
	Body    []byte
	Trailer http.Header
	Broken  bool // its body was not whole
}

// maxPattern is the longest pattern.
const maxPattern = 16 << 20

// pattern returns n bytes without repetition, at most maxPattern. The caller must not change
// them.
func pattern(n int) []byte { return patternBytes()[:n:n] }

var patternBytes = sync.OnceValue(func() []byte {
	b := make([]byte, maxPattern)
	x := uint32(2463534242)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
})

// field returns one line.
func field(name, value string) fieldLine { return fieldLine{Name: name, Value: &value} }

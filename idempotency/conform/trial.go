package conform

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// trial is one case that runs.
type trial struct {
	ctx context.Context
	kit *kit
	id  string // of the case in this run
	key string // unique

	mu      sync.Mutex
	wrong   []string // what was seen and should not have been
	lines   []*line
	answers [][]byte // of a service, that differ
}

// trial begins a case: the origin answers every request with its number.
func (k *kit) trial(ctx context.Context, id string) *trial {
	t := &trial{ctx: ctx, kit: k, id: k.name + "-" + id, key: "conform-" + strings.ToLower(rand.Text())}
	if !k.options.Service {
		k.options.Origin.play(t.id, []originAnswer{usual()})
	}
	return t
}

// usual is the origin's answer unless the case sets another one, with these fields besides.
func usual(more ...fieldLine) originAnswer {
	return originAnswer{
		Header: append([]fieldLine{field("Content-Type", "text/plain; charset=utf-8")}, more...),
		Body:   []byte("run {run} of {key}\n"),
	}
}

// as is the answer with another status.
func (a originAnswer) as(status int) originAnswer {
	a.Status = status
	return a
}

// stopped is the panic of a case that cannot go on.
type stopped struct{}

// run runs the check to its end.
func (t *trial) run(check func(*trial)) {
	defer t.end()
	defer func() {
		if p := recover(); p != nil && p != (stopped{}) {
			panic(p)
		}
	}()
	check(t)
}

// end closes all connections, and forgets the case.
func (t *trial) end() {
	t.mu.Lock()
	lines := t.lines
	t.mu.Unlock()
	for _, l := range lines {
		_ = l.Close()
	}
	if !t.kit.options.Service {
		t.kit.options.Origin.forget(t.id)
	}
}

// wrongf notes what was seen, and lets the case go on.
func (t *trial) wrongf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
}

// stopf is wrongf, and ends the case.
func (t *trial) stopf(format string, args ...any) {
	t.wrongf(format, args...)
	panic(stopped{})
}

// must ends the case if the kit itself failed.
func (t *trial) must(err error) {
	if err != nil {
		t.stopf("%v", err)
	}
}

// plays sets the answers of the origin in this case.
func (t *trial) plays(answers ...originAnswer) {
	t.kit.options.Origin.play(t.id, answers)
}

// seen waits until n requests have reached the origin, and returns all. What reaches a service is not
// seen.
func (t *trial) seen(n int) []seenRequest {
	if t.kit.options.Service {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.patience())
	defer cancel()
	return t.kit.options.Origin.find(t.id).await(ctx, n)
}

// patience is how long a case waits for what should happen soon.
func (t *trial) patience() time.Duration { return t.kit.options.Timeout / 4 }

// began waits until n requests have reached the origin.
func (t *trial) began(n int) {
	if seen := t.seen(n); len(seen) < n {
		t.stopf("%d requests reached the origin; %d were waited for", len(seen), n)
	}
}

// open lets a waiting request go on; 0 is all of them.
func (t *trial) open(run int) { t.kit.options.Origin.find(t.id).open(run) }

// quoted returns the case's key as the draft writes it.
func (t *trial) quoted() string { return t.quote(t.key) }

// quote returns a key as the field's value: a quoted string, but with the profile of an API the
// key itself.
func (t *trial) quote(key string) string {
	if t.kit.terms.api != nil {
		return key
	}
	return `"` + key + `"`
}

// request returns the usual request, a POST with the case's key, with these changes.
func (t *trial) request(changes ...change) *request {
	r := &request{
		method: http.MethodPost, target: t.kit.base, version: "HTTP/1.1", host: t.kit.target.Host,
		length: -1, body: []byte(t.kit.options.Body),
	}
	if !t.kit.options.Service {
		r.target += t.id + "/"
	}
	if t.kit.options.Header.Get("Content-Type") == "" {
		with("Content-Type", "application/json")(r)
	}
	for name, values := range t.kit.options.Header {
		for _, value := range values {
			with(name, value)(r)
		}
	}
	withKey(t.quoted())(r)
	for _, c := range changes {
		c(r)
	}
	return r
}

// dial opens a connection that ends with the case.
func (t *trial) dial() *line {
	l, err := t.connect()
	t.must(err)
	return l
}

func (t *trial) connect() (*line, error) {
	l, err := dial(t.ctx, t.kit.target)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTarget, t.kit.target.Host, err)
	}
	if t.kit.options.Service {
		l.runOf = t.runOf
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, l)
	return l, nil
}

// send sends the usual request with these changes on a new connection, and returns the answer.
func (t *trial) send(changes ...change) *reply { return t.exchange(t.request(changes...)) }

func (t *trial) exchange(r *request) *reply {
	l, err := t.connect()
	if err != nil {
		return &reply{err: err}
	}
	defer l.Close()
	if err := l.send(r); err != nil {
		// A target may answer without reading the body.
		if a := l.reply(r.method); a.err == nil {
			return a
		}
		return &reply{err: err}
	}
	return l.reply(r.method)
}

// again is send for a retry. It repeats a refusal for a while, because a target may need a
// moment to store the first answer.
func (t *trial) again(changes ...change) *reply { return t.againFor(t.patience(), changes...) }

// outcome is again after an attempt without an outcome, where the refusal may be final.
func (t *trial) outcome() *reply { return t.againFor(min(t.patience(), settling)) }

// settling is how long a target may take to note that an attempt is over, where a final refusal
// is allowed.
const settling = 2 * time.Second

func (t *trial) againFor(d time.Duration, changes ...change) *reply {
	begun := time.Now()
	for {
		a := t.send(changes...)
		if a.err != nil || !slices.Contains(t.kit.terms.conflict, a.status) || a.run() != 0 {
			return a
		}
		if slices.Equal(t.kit.terms.mismatch, t.kit.terms.conflict) && a.values("Retry-After") == nil {
			d = min(d, settling) // the refusal may be that of another request
		}
		if time.Since(begun) > d {
			return a
		}
		t.pause(settlingPause)
	}
}

// settlingPause is between two requests of againFor.
const settlingPause = 20 * time.Millisecond

// pause waits for d.
func (t *trial) pause(d time.Duration) { t.pauseUntil(d, func() bool { return false }) }

// pauseUntil waits for d, or until a condition holds. It counts ticks, because a machine that
// pauses gives the target no time.
func (t *trial) pauseUntil(d time.Duration, so func() bool) {
	const every = 5 * time.Millisecond
	look := time.NewTicker(every)
	defer look.Stop()
	for range d / every {
		if so() {
			return
		}
		select {
		case <-look.C:
		case <-t.ctx.Done():
			return
		}
	}
}

// sending is send without waiting for the answer.
func (t *trial) sending(changes ...change) <-chan *reply {
	answered := make(chan *reply, 1)
	r := t.request(changes...)
	go func() { answered <- t.exchange(r) }()
	return answered
}

// together sends the requests at the same moment, each on its own connection, and returns the
// answers in their order.
func (t *trial) together(requests ...*request) []*reply {
	answers := make([]*reply, len(requests))
	var group sync.WaitGroup
	start := make(chan struct{})
	for i, r := range requests {
		l, err := t.connect()
		if err != nil {
			answers[i] = &reply{err: err}
			continue
		}
		group.Go(func() {
			<-start
			if err := l.send(r); err != nil {
				answers[i] = &reply{err: err}
				return
			}
			answers[i] = l.reply(r.method)
		})
	}
	close(start)
	group.Wait()
	return answers
}

// isRun checks that an answer is the origin's, of that run.
func (t *trial) isRun(what string, a *reply, run int) {
	if a.err != nil || a.run() != run {
		t.wrongf("%s is not that of run %d, but %v", what, run, a)
	}
}

// isStatus checks that an answer is whole and has the status.
func (t *trial) isStatus(what string, a *reply, status int) {
	if a.err != nil || a.status != status {
		t.wrongf("%s is not %d, but %v", what, status, a)
	}
}

// repeats checks that again has the status and the body of first.
func (t *trial) repeats(what string, again, first *reply) {
	switch {
	case first.err != nil:
		t.wrongf("the first answer is none: %v", first)
	case again.err != nil || again.status != first.status:
		t.wrongf("%s does not repeat the first one (%v), but is %v", what, first, again)
	case !bytes.Equal(again.body, first.body):
		t.wrongf("%s has another body than the first one (%s): %s", what, excerpt(first.body), excerpt(again.body))
	}
}

// ran checks how many requests reached the origin. At a service it checks how many answers differ.
func (t *trial) ran(n int) {
	if t.kit.options.Service {
		t.mu.Lock()
		answers := len(t.answers)
		t.mu.Unlock()
		if answers != n {
			t.wrongf("by its answers, the service ran %s; want %s", times(answers), times(n))
		}
		return
	}
	if seen := t.seen(0); len(seen) != n {
		t.wrongf("the origin ran %s; want %s", times(len(seen)), times(n))
	}
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	}
	return strconv.Itoa(n) + " times"
}

// refused checks that the target itself has refused, with one of the statuses.
func (t *trial) refused(what string, a *reply, statuses []int) {
	switch {
	case a.err != nil || !slices.Contains(statuses, a.status):
		t.wrongf("%s was not refused with %s, but answered %v", what, either(statuses), a)
	case a.run() != 0:
		t.wrongf("%s was refused with the answer of run %d of the origin", what, a.run())
	}
}

func either(statuses []int) string {
	texts := make([]string, len(statuses))
	for i, s := range statuses {
		texts[i] = strconv.Itoa(s)
	}
	return strings.Join(texts, " or ")
}

// replayed sends a request and its retry, and checks that the retry gets the first answer and does not
// run. It returns both answers.
func (t *trial) replayed(changes ...change) (first, again *reply) {
	first = t.first(changes...)
	again = t.again(changes...)
	t.repeats("the retry's answer", again, first)
	t.ran(1)
	return first, again
}

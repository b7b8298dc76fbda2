package fault

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

// witness is a connection to a server, by no wire, with which a fault looks for its evidence. It
// is made for one strike, because it ends with the server.
type witness interface {
	// start differs between two starts of the server.
	start(ctx context.Context) (start, error)
	// now is the server's time of day.
	now(ctx context.Context) (time.Time, error)
	// sever ends connections that come from the addresses, and returns how many the server
	// says are gone.
	sever(ctx context.Context, from []*net.TCPAddr) (int, error)
	close()
}

// start identifies one start of a server.
type start struct {
	// id is another at each start; "" when the server has no such thing.
	id string
	// counts only grow until the server is started again.
	counts []int
}

// after reports whether the server was started again since the other start. It may miss a
// restart of a server without an ID.
func (l start) after(before start) bool {
	for i, n := range l.counts {
		if n < before.counts[i] {
			return true
		}
	}
	return l.id != before.id
}

// backends are the servers that faults know how to talk to.
var backends = map[string]func(ctx context.Context, url string) (witness, error){
	"redis": meetRedis, "postgres": meetPostgres, "mysql": meetMySQL, "http": meetServe, "etcd": meetServe,
}

// look is how long one look at a server may take.
const look = 5 * time.Second

// meet connects to the target's server, even after ctx has ended. It tries again for as long as
// one look may take, because a server that was just started may refuse connections.
func (t *Target) meet(ctx context.Context) (_ witness, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), look)
	defer cancel()
	for {
		w, refused := backends[t.backend()](ctx, t.url())
		if refused == nil {
			return w, nil
		}
		if err == nil || ctx.Err() == nil { // because the error at the end of the time says less
			err = fmt.Errorf("looking at the server: %w", refused)
		}
		if ctx.Err() != nil {
			return nil, err
		}
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
	}
}

// ask connects to the server for one question, even after ctx has ended.
func ask[T any](ctx context.Context, t *Target, question func(witness, context.Context) (T, error)) (answer T, err error) {
	w, err := t.meet(ctx)
	if err != nil {
		return answer, err
	}
	defer w.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), look)
	defer cancel()
	return question(w, ctx)
}

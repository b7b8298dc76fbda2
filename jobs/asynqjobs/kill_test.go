package asynqjobs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestKilled: wherever a worker dies, its task comes back before the next ones of its key,
// which were parked, and runs again unless it is remembered that it has run; on its last
// attempt it does not.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		point string
		opts  []asynq.Option
		want  []string
	}{
		{"before the claim", nil, []string{"1", "2", "3"}},
		{"after the grant", nil, []string{"1", "2", "3"}},
		{"in the handler", nil, []string{"1", "2", "3"}},
		{"before the settlement", nil, []string{"1", "1", "2", "3"}},
		{"after the settlement", nil, []string{"1", "2", "3"}},
		{"in the handler", []asynq.Option{asynq.MaxRetry(0)}, []string{"2", "3"}},
	} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			r := ownRedis(t)
			p := plan{Redis: r, Ahead: 1, Back: time.Hour}
			dies := p
			if tt.point != "after the settlement" { // which a lost lease has no record of
				dies.TTL = time.Second
			}
			f := newFixture(t, r, p.options())
			first := f.enqueue(t, job("k", "1", tt.opts...))
			f.enqueue(t, job("k", "2"))
			last := f.enqueue(t, job("k", "3"))
			child := startChild(t, tt.point, dies)
			child.Await()
			child.Kill()
			if err := f.mutex.redis.Del(t.Context(), "inside k").Err(); err != nil { // the dead are not inside
				t.Fatal(err)
			}
			// A minute passes, as far as Asynq knows; it looks when a server starts.
			old := redis.Z{Member: first.ID, Score: float64(time.Now().Add(-time.Minute).Unix())}
			testkit.Must(t, f.mutex.redis.ZAddXX(t.Context(), "asynq:{default}:lease", old).Err())
			startChild(t, "", p)
			f.gone(t, last.ID)
			if got := f.mutex.redis.LRange(t.Context(), "done k", 0, -1).Val(); !slices.Equal(got, tt.want) {
				t.Errorf("%v ran, want %v", got, tt.want)
			}
			if crowd := f.mutex.redis.LRange(t.Context(), "crowd", 0, -1).Val(); len(crowd) > 0 {
				t.Errorf("%v began beside another", crowd)
			}
			if len(tt.opts) == 0 {
				f.gone(t, first.ID)
			} else if got := f.becomes(t, first.ID, asynq.TaskStateArchived); !strings.HasPrefix(got.LastErr, refusal) {
				t.Errorf("it was archived with %q", got.LastErr)
			}
		})
	}
}

// TestKilledWhileItWaits: a worker that is killed while its task waits for its turn blocks the key
// for Grace, and not for CrashGrace. The task comes again when Asynq has noticed.
func TestKilledWhileItWaits(t *testing.T) {
	t.Parallel()
	r := ownRedis(t)
	p := plan{Redis: r, Ahead: 8, Grace: 300 * time.Millisecond, Back: time.Hour}
	f := newFixture(t, r, p.options())
	lease, err := f.mutex.dibs.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	first := f.enqueue(t, job("k", "1"))
	child := startChild(t, "in the wait", p)
	child.Await()
	child.Kill()
	testkit.Must(t, lease.Release())
	f.serve(t, asynq.Config{}, f.note)
	f.enqueue(t, job("k", "2"))
	f.did.is(t, "2")
	old := redis.Z{Member: first.ID, Score: float64(time.Now().Add(-time.Minute).Unix())}
	testkit.Must(t, f.mutex.redis.ZAddXX(t.Context(), "asynq:{default}:lease", old).Err())
	f.serve(t, asynq.Config{}, f.note) // Asynq looks when a server starts
	f.did.is(t, "2", "1")
}

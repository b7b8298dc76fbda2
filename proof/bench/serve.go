package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/store"
)

// served is dibs serve on a Redis server, and the same store in this process.
type served struct {
	*redisBench
	api    *server
	socket string
}

func newServed(ctx context.Context, c config, o *servertest.RedisOptions) (s *served, err error) {
	b, err := newRedisBench(o)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dibs-bench-")
	if err != nil {
		b.end()
		return nil, err
	}
	b.close = append(b.close, func() { os.RemoveAll(dir) })
	s = &served{redisBench: b, socket: filepath.Join(dir, "sock")}
	s.api, err = serve(ctx, c.dibs, "serve", "--store", b.server.URL(), "--listen", "127.0.0.1:0", "--listen", "unix:"+s.socket)
	if err != nil {
		b.end()
		return nil, err
	}
	b.close = append(b.close, s.api.end)
	return s, nil
}

// lockByHTTP claims and settles a key by two calls of the lease API. took, if any, gets what each
// call took.
func lockByHTTP(c *caller, key string, took func(time.Duration)) error {
	t := store.NewToken()
	element := fmt.Sprintf(`{"key":%q,"token":%q`, key, hex.EncodeToString(t[:]))
	for _, call := range []struct{ path, body, want string }{
		{"/v1/claim", `{"claims":[` + element + fmt.Sprintf(`,"ttl_ms":%d}]}`, lockTTL.Milliseconds()), `"granted"`},
		{"/v1/settle", `{"settlements":[` + element + `}]}`, `{"answers":[{}]}`},
	} {
		began := time.Now()
		if _, err := c.call(call.path, call.body, call.want); err != nil {
			return err
		}
		if took != nil {
			took(time.Since(began))
		}
	}
	return nil
}

// rate returns how often the connections claim and settle keys of their own a second.
func (s *served) rate(ctx context.Context, d time.Duration) (float64, error) {
	callers, end, err := dialCallers(ctx, "tcp", s.api.addr(), connections)
	if err != nil {
		return 0, err
	}
	defer end()
	return rate(ctx, connections, d, func(_ context.Context, g, i int) error {
		return lockByHTTP(callers[g], fmt.Sprintf("connection %d, cycle %d", g, i), nil)
	})
}

// servedInProcess compares claims and settlements by HTTP with the same in this process.
func servedInProcess(ctx context.Context, c config) (figure, error) {
	s, err := newServed(ctx, c, nil)
	if err != nil {
		return figure{}, err
	}
	defer s.end()
	return interleave(ctx, c, "claim+settle/s", s.rate, func(ctx context.Context, d time.Duration) (float64, error) {
		return lockRate(ctx, s.lockers[ours][0], connections, d)
	})
}

// servedEtcd compares them with locks of etcd's JSON gateway.
func servedEtcd(o *servertest.RedisOptions) func(context.Context, config) (figure, error) {
	return func(ctx context.Context, c config) (figure, error) {
		e, err := newEtcd(ctx)
		if err != nil {
			return figure{}, err
		}
		defer e.end()
		s, err := newServed(ctx, c, o)
		if err != nil {
			return figure{}, err
		}
		defer s.end()
		return interleave(ctx, c, "claim+settle/s", s.rate, e.rate)
	}
}

// servedLatency measures what a call takes longer over a Unix socket than in this process, by the
// median of one caller's claims and settlements.
func servedLatency(ctx context.Context, c config) (figure, error) {
	s, err := newServed(ctx, c, nil)
	if err != nil {
		return figure{}, err
	}
	defer s.end()
	callers, end, err := dialCallers(ctx, "unix", s.socket, 1)
	if err != nil {
		return figure{}, err
	}
	defer end()
	byHTTP := func(_ context.Context, key string, took func(time.Duration)) error {
		return lockByHTTP(callers[0], key, took)
	}
	client := s.lockers[ours][0].(dibsLocker).client
	inProcess := func(ctx context.Context, key string, took func(time.Duration)) error {
		began := time.Now()
		lease, err := client.Acquire(ctx, key, nil)
		if err != nil {
			return err
		}
		took(time.Since(began))
		began = time.Now()
		err = lease.Release()
		took(time.Since(began))
		return err
	}
	f := figure{unit: "ms"}
	var there, here []float64
	for round := range c.rounds + 1 {
		a, err := middle(ctx, c.round, byHTTP)
		if err != nil {
			return f, err
		}
		b, err := middle(ctx, c.round, inProcess)
		if err != nil {
			return f, err
		}
		if round > 0 { // the first one warms up
			f.value, there, here = append(f.value, a-b), append(there, a), append(here, b)
		}
	}
	f.detail = fmt.Sprintf("a claim or a settlement %s ms, in process %s ms", count(median(there)), count(median(here)))
	return f, ctx.Err()
}

// middle returns the median time of the calls of one caller, in milliseconds.
func middle(ctx context.Context, d time.Duration, lock func(ctx context.Context, key string, took func(time.Duration)) error) (float64, error) {
	var all []time.Duration
	for start, i := time.Now(), 0; time.Since(start) < d; i++ {
		if err := lock(ctx, fmt.Sprintf("alone, cycle %d", i), func(took time.Duration) { all = append(all, took) }); err != nil {
			return 0, err
		}
	}
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000, nil
}

// polls is how many clients wait for one key.
const polls = 10_000

// servedMemory measures the memory of dibs serve while clients wait for one key, each on a
// connection of its own.
func servedMemory(ctx context.Context, c config) (figure, error) {
	f := figure{unit: "MiB"}
	for range min(c.rounds, 3) {
		now, most, err := pollsMemory(ctx, c)
		if err != nil {
			return f, err
		}
		f.value = append(f.value, now)
		f.detail = fmt.Sprintf("%s MiB at most, while all of them are granted the key", count(most))
	}
	return f, nil
}

// pollsMemory returns the memory of a server of waiting clients, and the most that it had when the
// last one was granted the key.
func pollsMemory(ctx context.Context, c config) (now, most float64, err error) {
	s, err := serve(ctx, c.dibs, "serve", "--store", "memory:", "--listen", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	defer s.end()
	callers, end, err := dialCallers(ctx, "tcp", s.addr(), polls+1)
	if err != nil {
		return 0, 0, fmt.Errorf("%w (it needs %d open files, twice)", err, polls)
	}
	defer end()
	element := func(i int) string { return fmt.Sprintf(`{"key":"k","token":"%032x"`, i+1) }
	settle := func(i int) error {
		_, err := callers[i].call("/v1/settle", `{"settlements":[`+element(i)+`}]}`, `{"answers":[{}]}`)
		return err
	}
	if _, err := callers[polls].call("/v1/claim", `{"claims":[`+element(polls)+`,"ttl_ms":3600000}]}`, `"granted"`); err != nil {
		return 0, 0, err
	}
	granted := make(chan error, polls)
	for i, one := range callers[:polls] {
		go func() {
			_, err := one.call("/v1/claim", `{"claims":[`+element(i)+`,"mode":"queue","ttl_ms":3600000,"place_ttl_ms":3600000}],"wait_ms":60000}`, `"granted"`)
			if err == nil {
				err = settle(i)
			}
			granted <- err
		}()
	}
	for waiting := ""; !strings.Contains(waiting, fmt.Sprintf("\ndibs_serve_waiting %d\n", polls)); {
		select {
		case err := <-granted:
			return 0, 0, fmt.Errorf("a client does not wait: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
		if waiting, err = read(ctx, s.url+"/metrics"); err != nil {
			return 0, 0, err
		}
	}
	if now, err = memoryOf(s.cmd.Process.Pid, "VmRSS"); err != nil {
		return 0, 0, err
	}
	if err := settle(polls); err != nil {
		return 0, 0, err
	}
	for range polls {
		if err := <-granted; err != nil {
			return 0, 0, err
		}
	}
	most, err = memoryOf(s.cmd.Process.Pid, "VmHWM")
	return now, most, err
}

// memoryOf returns the memory of a process in MiB: what it has (VmRSS), or had at most (VmHWM).
func memoryOf(pid int, which string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	var kib float64
	_, rest, _ := strings.Cut(string(text), which+":")
	_, err = fmt.Sscan(rest, &kib)
	return kib / 1024, err
}

package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/dibsotel"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/peers"
	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// openServed starts dibs serve on a Redis server, and the same store in this process.
func openServed(o *servertest.RedisOptions) opener {
	return func(ctx context.Context, c config, b *candidates) {
		onRedis(o)(ctx, c, b)
		b.socket = filepath.Join(b.folder(), "sock")
		b.api = b.serve(ctx, c.dibs, "serve", "--store", b.redis.URL(), "--listen", "127.0.0.1:0", "--listen", "unix:"+b.socket)
	}
}

// lockByHTTP claims and settles a key by two calls of the lease API. took gets what each call took.
func lockByHTTP(c *fasthttp.HostClient, key string, took func(time.Duration)) error {
	t := store.NewToken()
	element := fmt.Sprintf(`{"key":%q,"token":%q`, key, hex.EncodeToString(t[:]))
	for _, call := range []struct{ path, body, want string }{
		{"/v1/claim", `{"claims":[` + element + fmt.Sprintf(`,"ttl_ms":%d}]}`, lockTTL.Milliseconds()), `"granted"`},
		{"/v1/settle", `{"settlements":[` + element + `}]}`, `{"answers":[{}]}`},
	} {
		began := time.Now()
		if _, err := post(c, call.path, "", call.body, http.StatusOK, call.want); err != nil {
			return err
		}
		took(time.Since(began))
	}
	return nil
}

// served returns how often the connections claim and settle keys of their own a second.
func (b *candidates) served(c config, api *server) side {
	client := b.dial("tcp", api.addr(), connections)
	return func(ctx context.Context, _ int) float64 {
		return rate(ctx, "dibs serve", connections, c.round, func(_ context.Context, g, i int) error {
			return lockByHTTP(client, fmt.Sprintf("connection %d, cycle %d", g, i), func(time.Duration) {})
		})
	}
}

// servedBare compares claims and settlements in memory with a server that has no store.
var servedBare = with(alone, func(ctx context.Context, c config, b *candidates) figure {
	api := b.serve(ctx, c.dibs, "serve", "--store", "memory:", "--listen", "127.0.0.1:0")
	return interleave(ctx, c, "claim+settle/s", b.served(c, api), b.served(c, b.own(ctx, "lending")))
})

// lend is a bare handler: it reads a call and writes the answer of dibs serve to a claim of a free key, or to its
// settlement.
func lend(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/v1/claim" {
		_, _ = io.WriteString(w, `{"answers":[{"state":"granted","fence":"100234","attempt":1}]}`)
	} else {
		_, _ = io.WriteString(w, `{"answers":[{}]}`)
	}
}

// servedEtcd compares them with locks of etcd's JSON gateway.
func servedEtcd(o *servertest.RedisOptions) func(context.Context, config) figure {
	return with(openServed(o), func(ctx context.Context, c config, b *candidates) figure {
		return interleave(ctx, c, "claim+settle/s", b.served(c, b.api), b.etcd(c, peers.EtcdServer(b, nil).Addr()))
	})
}

// etcd returns how often the connections lock and unlock names of their own a second. Each has a
// lease, which its locks share.
func (b *candidates) etcd(c config, addr string) side {
	client := b.dial("tcp", addr, connections)
	call := func(path, has string, answer any, body string, args ...any) error {
		text, err := post(client, path, "", fmt.Sprintf(body, args...), http.StatusOK, has)
		if err == nil && answer != nil {
			err = json.Unmarshal([]byte(text), answer)
		}
		return err
	}
	return func(ctx context.Context, _ int) float64 {
		leases := make([]struct{ ID string }, connections)
		for g := range leases {
			must(call("/v3/lease/grant", `"ID"`, &leases[g], `{"TTL":%d}`, int((c.round + stuck).Seconds())))
		}
		return rate(ctx, "etcd", connections, c.round, func(_ context.Context, g, i int) error {
			var lock struct{ Key string }
			name := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "connection %d, cycle %d", g, i))
			if err := call("/v3/lock/lock", `"key"`, &lock, `{"name":%q,"lease":%q}`, name, leases[g].ID); err != nil {
				return err
			}
			return call("/v3/lock/unlock", `"header"`, nil, `{"key":%q}`, lock.Key)
		})
	}
}

// servedLatency measures what a call takes longer over a Unix socket than in this process, by the
// median of one caller's claims and settlements.
var servedLatency = with(openServed(nil), func(ctx context.Context, c config, b *candidates) figure {
	client := b.dial("unix", b.socket, 1)
	middle := func(lock func(key string, took func(time.Duration)) error) side {
		return func(context.Context, int) float64 {
			var all []time.Duration
			for start, i := time.Now(), 0; time.Since(start) < c.round; i++ {
				must(lock(fmt.Sprintf("alone, cycle %d", i), func(took time.Duration) { all = append(all, took) }))
			}
			return quantile(all, 0.5)
		}
	}
	got := c.turns(ctx, middle(func(key string, took func(time.Duration)) error { return lockByHTTP(client, key, took) }),
		middle(func(key string, took func(time.Duration)) error {
			began := time.Now()
			lease, err := b.clients[0].Acquire(ctx, key, nil)
			if err != nil {
				return err
			}
			took(time.Since(began))
			began = time.Now()
			err = lease.Release()
			took(time.Since(began))
			return err
		}))
	f := figure{unit: "ms", detail: fmt.Sprintf("a claim or a settlement %s ms, in process %s ms", count(median(got[0])), count(median(got[1])))}
	for i, there := range got[0] {
		f.value = append(f.value, there-got[1][i])
	}
	return f
})

// polls is how many clients wait for one key.
const polls = 10_000

// servedMemory measures the memory of dibs serve while clients wait for one key, each on a
// connection of its own.
func servedMemory(ctx context.Context, c config) figure {
	f := figure{unit: "MiB"}
	for range min(c.rounds, 3) {
		one := pollsMemory(ctx, c)
		f.value, f.detail = append(f.value, one.value...), one.detail
	}
	return f
}

// pollsMemory is the memory of a server of waiting clients, and the most that it had when the
// last one was granted the key.
var pollsMemory = with(alone, func(ctx context.Context, c config, b *candidates) figure {
	s := b.serve(ctx, c.dibs, "serve", "--store", "memory:", "--listen", "127.0.0.1:0")
	client := b.dial("tcp", s.addr(), polls+1)
	element := func(i int) string { return fmt.Sprintf(`{"key":"k","token":"%032x"`, i+1) }
	claim := func(i int, more, wait string) error {
		_, err := post(client, "/v1/claim", "", `{"claims":[`+element(i)+`,"ttl_ms":3600000`+more+`}]`+wait+`}`, http.StatusOK, `"granted"`)
		return err
	}
	settle := func(i int) error {
		_, err := post(client, "/v1/settle", "", `{"settlements":[`+element(i)+`}]}`, http.StatusOK, `{"answers":[{}]}`)
		return err
	}
	must(claim(polls, "", ""))
	granted := make(chan error, polls)
	for i := range polls {
		go func() {
			err := claim(i, `,"mode":"queue","place_ttl_ms":3600000`, `,"wait_ms":60000`)
			if err == nil {
				err = settle(i)
			}
			granted <- err
		}()
	}
	for waiting := ""; !strings.Contains(waiting, fmt.Sprintf("\ndibs_serve_waiting %d\n", polls)); {
		select {
		case err := <-granted:
			must(fmt.Errorf("a client does not wait (it needs %d open files, twice): %w", polls, err))
		case <-time.After(100 * time.Millisecond):
		}
		waiting = get(read(ctx, s.url+"/metrics"))
	}
	f := figure{value: []float64{s.memory("VmRSS")}}
	must(settle(polls))
	for range polls {
		must(<-granted)
	}
	f.detail = fmt.Sprintf("%s MiB at most, while all of them are granted the key", count(s.memory("VmHWM")))
	return f
})

// memory returns the memory of a server in MiB: what it has (VmRSS), or had at most (VmHWM).
func (s *server) memory(which string) (mib float64) {
	_, rest, _ := strings.Cut(string(get(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid)))), which+":")
	get(fmt.Sscan(rest, &mib))
	return mib / 1024
}

// redisObserved compares clients of a program that traces one section in a hundred: one
// whose metrics are collected each second and whose spans are made, and one without.
var redisObserved = with(openRedis, func(ctx context.Context, c config, b *candidates) figure {
	registry := prometheus.NewRegistry()
	reader := get(exporter.New(exporter.WithRegisterer(registry)))
	tracers := sdk.NewTracerProvider(sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(0.01))))
	telemetry := get(dibsotel.New(&dibsotel.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)), TracerProvider: tracers}))
	store := get(redisstore.New(b.rueidis, nil))
	observed := b.client(store, store.Close, &dibs.Options{TTL: lockTTL, Observe: telemetry.Lease, ObserveStore: telemetry.StoreCall})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go eachSecond(ctx, func() { _, _ = registry.Gather() })
	tracer := tracers.Tracer("bench")
	by := func(l locker) side {
		traced := torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
			ctx, span := tracer.Start(ctx, "section")
			held, err := l.Lock(ctx, key)
			if err != nil {
				span.End()
				return nil, err
			}
			return &torture.Held{Unlock: func() error {
				defer span.End()
				return held.Unlock()
			}}, nil
		})
		return func(ctx context.Context, _ int) float64 { return lockRate(ctx, ours, traced, 64, c.round) }
	}
	return interleave(ctx, c, "claim+settle/s", by(byClient(observed)), by(b.lockers[ours][0]))
})

package main

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/dibsotel"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// tracedLocker traces each section; one in a hundred is sampled.
type tracedLocker struct {
	dibsLocker
	tracer trace.Tracer
}

func (l tracedLocker) lock(ctx context.Context, key string, section func()) error {
	ctx, span := l.tracer.Start(ctx, "section")
	defer span.End()
	return l.dibsLocker.lock(ctx, key, section)
}

// redisObserved compares clients of a program that traces one section in a hundred: one
// whose metrics are collected each second and whose spans are made, and one without.
func redisObserved(ctx context.Context, c config) (figure, error) {
	b, err := newRedisBench(nil)
	if err != nil {
		return figure{}, err
	}
	defer b.end()
	store, err := redisstore.New(b.client, nil)
	if err != nil {
		return figure{}, err
	}
	defer store.Close()
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return figure{}, err
	}
	tracers := sdk.NewTracerProvider(sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(0.01))))
	telemetry, err := dibsotel.New(&dibsotel.Options{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)), TracerProvider: tracers,
	})
	if err != nil {
		return figure{}, err
	}
	client, err := dibs.New(store, &dibs.Options{TTL: lockTTL, Observe: telemetry.Lease, ObserveStore: telemetry.StoreCall})
	if err != nil {
		return figure{}, err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go eachSecond(ctx, func() { _, _ = registry.Gather() })
	tracer := tracers.Tracer("bench")
	by := func(l dibsLocker) func(context.Context, time.Duration) (float64, error) {
		return func(ctx context.Context, d time.Duration) (float64, error) {
			return lockRate(ctx, tracedLocker{l, tracer}, 64, d)
		}
	}
	return interleave(ctx, c, "claim+settle/s", by(dibsLocker{client}), by(b.lockers[ours][0].(dibsLocker)))
}

// eachSecond calls f each second until ctx ends.
func eachSecond(ctx context.Context, f func()) {
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for {
		select {
		case <-each.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// proxyObserved compares first requests through a proxy whose metrics are scraped each
// second with the same through one that has none.
func proxyObserved(ctx context.Context, c config) (figure, error) {
	origin, err := serveOwn(ctx, "bare")
	if err != nil {
		return figure{}, err
	}
	defer origin.end()
	flags := []string{"proxy", "--listen", "127.0.0.1:0", "--upstream", origin.url, "--store", "memory:", "--access-log=off"}
	bare, err := serve(ctx, c.dibs, flags...)
	if err != nil {
		return figure{}, err
	}
	defer bare.end()
	observed, err := serve(ctx, c.dibs, append(flags, "--admin", "127.0.0.1:0")...)
	if err != nil {
		return figure{}, err
	}
	defer observed.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go eachSecond(ctx, func() { _, _ = read(ctx, observed.admin+"/metrics") })
	return compareServers(ctx, c, observed, bare, once)
}

// proxyPages compares first requests through a proxy while ten pages for operators are open with
// the same through the same proxy without them. The pages are opened anew in each round, so they
// get more messages than pages that stay open.
func proxyPages(ctx context.Context, c config) (figure, error) {
	origin, err := serveOwn(ctx, "bare")
	if err != nil {
		return figure{}, err
	}
	defer origin.end()
	proxy, err := serve(ctx, c.dibs, "proxy", "--listen", "127.0.0.1:0", "--upstream", origin.url, "--store", "memory:", "--access-log=off", "--admin", "127.0.0.1:0")
	if err != nil {
		return figure{}, err
	}
	defer proxy.end()
	with := func(pages int) func(context.Context, time.Duration) (float64, error) {
		return func(ctx context.Context, d time.Duration) (float64, error) {
			opened, closeAll := context.WithCancel(ctx)
			var open sync.WaitGroup
			defer open.Wait()
			defer closeAll()
			for range pages {
				open.Go(func() { _, _ = read(opened, proxy.admin+"/page/events") })
			}
			return load{addr: proxy.addr(), keys: once()}.perSecond(ctx, d)
		}
	}
	return interleave(ctx, c, "answers/s", with(10), with(0))
}

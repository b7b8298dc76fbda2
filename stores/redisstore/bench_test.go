package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Claim and settlement of an own key each, by several goroutines at once.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, goroutines := range []int{1, 64, 512} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			client, server := benchClient(b)
			b.ReportAllocs()
			b.ResetTimer()
			here, there := processorTime(b), serverTime(b, server)
			defer func() {
				b.ReportMetric(float64((processorTime(b)-here).Nanoseconds())/float64(b.N), "client-ns/op")
				b.ReportMetric(float64((serverTime(b, server)-there).Nanoseconds())/float64(b.N), "server-ns/op")
			}()
			var n atomic.Int64
			var all sync.WaitGroup
			for g := range goroutines {
				all.Go(func() {
					for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
						lease, err := client.Acquire(context.Background(), fmt.Sprintf("goroutine %d, cycle %d", g, i), nil)
						if err == nil {
							err = lease.Release()
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverTime is what the server has used, by its own account.
func serverTime(b *testing.B, server *servertest.RedisServer) time.Duration {
	b.Helper()
	answer, err := server.Do("INFO", "cpu")
	info, _ := answer.(string)
	if err != nil || info == "" {
		b.Fatal("INFO cpu:", answer, err)
	}
	var sum float64
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			testkit.Must(b, err)
			sum += seconds
		}
	}
	return time.Duration(sum * float64(time.Second))
}

func benchClient(b *testing.B) (*dibs.Client, *servertest.RedisServer) {
	b.Helper()
	server := servertest.Redis(b, nil)
	r, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true,
	})
	testkit.Must(b, err)
	b.Cleanup(r.Close)
	s, err := New(r, nil)
	testkit.Must(b, err)
	b.Cleanup(func() { _ = s.Close() })
	client, err := dibs.New(s, nil)
	testkit.Must(b, err)
	b.Cleanup(func() { _ = client.Close() })
	return client, server
}

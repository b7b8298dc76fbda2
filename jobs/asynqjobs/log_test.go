package asynqjobs

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/redisstore"
)

// taskLog is a Logger of Asynq.
type taskLog struct{ record }

func (l *taskLog) Debug(args ...any) { l.add("DEBUG %s", fmt.Sprint(args...)) }
func (l *taskLog) Info(args ...any)  { l.add("INFO %s", fmt.Sprint(args...)) }
func (l *taskLog) Warn(args ...any)  { l.add("WARN %s", fmt.Sprint(args...)) }
func (l *taskLog) Error(args ...any) { l.add("ERROR %s", fmt.Sprint(args...)) }
func (l *taskLog) Fatal(args ...any) { l.add("FATAL %s", fmt.Sprint(args...)) }

// TestOneLineATaskInAsynqsLog: each task has one line at DEBUG in the Logger of the server that
// ran it, if the server's LogLevel has that.
func TestOneLineATaskInAsynqsLog(t *testing.T) {
	t.Parallel()
	for level, want := range map[asynq.LogLevel]int{asynq.DebugLevel: 1, asynq.InfoLevel: 0, 0: 0, asynq.FatalLevel: 0} {
		t.Run(fmt.Sprint(int(level)), func(t *testing.T) {
			t.Parallel()
			r := ownRedis(t)
			store, err := redisstore.Open(t.Context(), storeURL(r), nil)
			testkit.Must(t, err)
			client, err := dibs.New(store, nil)
			testkit.Must(t, err)
			mutex, err := New(r, client, nil)
			testkit.Must(t, err)
			var log taskLog
			done := make(chan struct{}, 4)
			config := Config(asynq.Config{Concurrency: 4, Logger: &log, LogLevel: level})
			server := asynq.NewServer(r, config)
			testkit.Must(t, server.Start(mutex.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				done <- struct{}{}
				return nil
			}))))
			var ids []string
			for range cap(done) {
				info, err := mutex.EnqueueContext(t.Context(), job("k", "it"))
				testkit.Must(t, err)
				ids = append(ids, info.ID)
			}
			for range ids {
				<-done
			}
			server.Shutdown() // which waits for the tasks
			testkit.Must(t, mutex.Close())
			testkit.Must(t, client.Close())
			for _, id := range ids {
				n := 0
				for _, line := range log.read() {
					if strings.HasPrefix(line, `DEBUG msg="dibs: job succeeded" key=`+client.Key("k").Digest()+" kind=job job=default:"+id+" attempt=") {
						n++
					}
				}
				if n != want {
					t.Errorf("task %s has %d lines, want %d: %q", id, n, want, log.read())
				}
			}
		})
	}
}

// TestServerHandlerKeepsAttributes: attributes and groups reach the Logger that the context names.
func TestServerHandlerKeepsAttributes(t *testing.T) {
	var log taskLog
	ctx := context.WithValue(t.Context(), serverKey{}, &server{log: newServerLog(&log, asynq.InfoLevel)})
	logger := slog.New(&serverHandler{}).With("a", 1).WithGroup("g")
	logger.With("b", 2).WarnContext(ctx, "late")
	logger.ErrorContext(ctx, "failed", "level", "mine")
	logger.DebugContext(ctx, "unseen")
	log.is(t, `WARN msg=late a=1 g.b=2`, `ERROR msg=failed a=1 g.level=mine`)
}

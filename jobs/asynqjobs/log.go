package asynqjobs

import (
	"context"
	"log/slog"
	"strings"

	"github.com/hibiken/asynq"
)

// serverHandler passes each record to the Logger of the server that has the task, and to
// slog.Default without a server or if its configuration has no Logger.
type serverHandler struct {
	with []func(slog.Handler) slog.Handler // the attributes and groups, in their order
}

func (h *serverHandler) of(ctx context.Context, level slog.Level) slog.Handler {
	to := slog.Default().Handler()
	if s, ok := ctx.Value(serverKey{}).(*server); ok && s.log != nil {
		to = s.log.of(level)
	}
	for _, with := range h.with {
		to = with(to)
	}
	return to
}

func (h *serverHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.of(ctx, level).Enabled(ctx, level)
}

func (h *serverHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.of(ctx, r.Level).Handle(ctx, r)
}

func (h *serverHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.and(func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

func (h *serverHandler) WithGroup(name string) slog.Handler {
	return h.and(func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h *serverHandler) and(with func(slog.Handler) slog.Handler) slog.Handler {
	return &serverHandler{append(h.with[:len(h.with):len(h.with)], with)}
}

// levels are Asynq's, as slog has them; by default INFO. No record is above ERROR.
var levels = map[asynq.LogLevel]slog.Level{
	asynq.DebugLevel: slog.LevelDebug, asynq.WarnLevel: slog.LevelWarn,
	asynq.ErrorLevel: slog.LevelError, asynq.FatalLevel: slog.LevelError + 1,
}

// serverLog is Asynq's Logger as one handler for each of its methods.
type serverLog struct{ debug, info, warn, error slog.Handler }

// newServerLog returns nil without a Logger.
func newServerLog(logger asynq.Logger, least asynq.LogLevel) *serverLog {
	if logger == nil {
		return nil
	}
	// Time and level are the Logger's own.
	o := &slog.HandlerOptions{Level: levels[least], ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}}
	to := func(write func(...any)) slog.Handler { return slog.NewTextHandler(logWriter(write), o) }
	return &serverLog{to(logger.Debug), to(logger.Info), to(logger.Warn), to(logger.Error)}
}

func (l *serverLog) of(level slog.Level) slog.Handler {
	switch {
	case level < slog.LevelInfo:
		return l.debug
	case level < slog.LevelWarn:
		return l.info
	case level < slog.LevelError:
		return l.warn
	}
	return l.error
}

// logWriter is a method of Asynq's Logger. It gets one line at a time.
type logWriter func(...any)

func (w logWriter) Write(line []byte) (int, error) {
	w(strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

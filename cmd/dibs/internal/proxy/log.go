package proxy

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"
	"strings"
)

// Logger returns a logger that writes to w as the configuration says. A reload changes its level.
func (c *Config) Logger(w io.Writer) *slog.Logger {
	c.setLevel()
	o := &slog.HandlerOptions{Level: &c.source.level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// setLevel changes the level of the logger to that of the configuration.
func (c *Config) setLevel() {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // was checked when it was set
	c.source.level.Set(level)
}

// namingFlags is a handler for the middleware's logger. A warning names what to set, which is a
// field in Go and a flag here.
type namingFlags struct{ slog.Handler }

var flagOfField = strings.NewReplacer(
	"Options.Key", "--key or --for", "Options.RequireKey", "--require-key", "Fingerprint.KeyAlone", "--fingerprint",
	"Options.ToolWindows", "--tool-windows",
)

func (h namingFlags) Handle(ctx context.Context, r slog.Record) error {
	r.Message = flagOfField.Replace(r.Message)
	return h.Handler.Handle(ctx, r)
}

// Listening writes the line which says that a server accepts connections: as text, or as a JSON
// object if that is the format of its log. where are pairs of what it is and where it is.
func Listening(w io.Writer, program, format string, where ...string) error {
	text := program + ": listening on " + where[1]
	if format == "json" {
		args := make([]any, len(where))
		for i, text := range where {
			args[i] = text
		}
		slog.New(slog.NewJSONHandler(w, nil)).Info(text, args...)
		return nil
	}
	for pair := range slices.Chunk(where[2:], 2) {
		text += ", " + pair[0] + " " + pair[1]
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// Capture makes packages that have no logger of the proxy's write to l. They are net/http's
// transport and OpenTelemetry.
func Capture(l *slog.Logger) {
	slog.SetDefault(l)
	log.SetFlags(0)
	log.SetOutput(captured{l})
}

// captured writes the lines of package log.
type captured struct{ log *slog.Logger }

// Write writes a line. It leaves out what follows "starting with", because net/http quotes
// there what an origin sent without a request.
func (c captured) Write(p []byte) (int, error) {
	text, _, _ := strings.Cut(string(p), " starting with ")
	c.log.Warn(strings.TrimSpace(text))
	return len(p), nil
}

// errorLog returns a logger for packages that know only package log.
func (s *Server) errorLog() *log.Logger {
	return slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)
}

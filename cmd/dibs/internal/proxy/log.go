package proxy

import (
	"io"
	"log"
	"log/slog"
	"strings"
)

// Logger returns a logger that writes to w as the configuration says.
func (c *Config) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // was checked when it was set
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
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

package proxy

import (
	"io"
	"log"
	"log/slog"
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

// errorLog returns a logger for packages that know only package log.
func (s *Server) errorLog() *log.Logger {
	return slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)
}

package proxy

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
)

// Logger returns a logger that writes to w as the configuration says. A reload changes its level.
func (c *Config) Logger(w io.Writer) *slog.Logger {
	c.setLevel()
	return server.Logger(w, c.LogFormat, &c.source.level)
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
	"Options.Key", "--key or --for", "Options.RequireKey", "--require-key", "Fingerprint.KeyAlone", "fingerprint",
	"MCP.ToolWindows", "tool-windows",
)

func (h namingFlags) Handle(ctx context.Context, r slog.Record) error {
	r.Message = flagOfField.Replace(r.Message)
	return h.Handler.Handle(ctx, r)
}

package accesslog

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/store"
)

// Text returns a logger of text. With keys its lines have the names of keys; otherwise they have
// their digests. The text is escaped so that no name can move a terminal's cursor or turn a line.
func Text(w io.Writer, o *slog.HandlerOptions, keys bool) *slog.Logger {
	var h slog.Handler = slog.NewTextHandler(w, o)
	if keys {
		h = namingKeys{h}
	}
	return slog.New(h)
}

// namingKeys writes the names of keys, also in the errors of their lines.
type namingKeys struct{ slog.Handler }

func (h namingKeys) Handle(ctx context.Context, r slog.Record) error {
	var key store.Key
	r.Attrs(func(a slog.Attr) bool {
		if k, ok := a.Value.Any().(store.Key); ok {
			key = k
		}
		return key.Name == ""
	})
	if key.Name == "" {
		return h.Handler.Handle(ctx, r)
	}
	named := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		switch v := a.Value.Any().(type) {
		case store.Key:
			a.Value = slog.StringValue(v.Name)
		case string:
			a.Value = slog.StringValue(strings.ReplaceAll(v, key.Digest(), strconv.Quote(key.Name)))
		}
		named.AddAttrs(a)
		return true
	})
	return h.Handler.Handle(ctx, named)
}

// WithAttrs and WithGroup keep the names.
func (h namingKeys) WithAttrs(attrs []slog.Attr) slog.Handler {
	return namingKeys{h.Handler.WithAttrs(attrs)}
}

func (h namingKeys) WithGroup(name string) slog.Handler {
	return namingKeys{h.Handler.WithGroup(name)}
}

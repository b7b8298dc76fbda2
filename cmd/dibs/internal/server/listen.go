package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
)

// Listen listens on an address: HOST:PORT, or unix:PATH for a Unix socket with that mode.
func Listen(address string, mode fs.FileMode) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return listenUnix(path, mode)
	}
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("another process listens on %s: end it, or choose another port", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("this user may not listen on %s: choose a port from 1024 on, or give the program the capability CAP_NET_BIND_SERVICE", address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is not an address of this host: write 127.0.0.1 for programs of this host, or no host for all addresses", address)
	}
	return l, err
}

// URL returns the URL of a listener, with TLS or without.
func URL(l net.Listener, secure bool) string {
	switch {
	case l.Addr().Network() == "unix":
		return "http+unix:" + l.Addr().String()
	case secure:
		return "https://" + l.Addr().String()
	}
	return "http://" + l.Addr().String()
}

// Announce writes the line which says that a server accepts connections: as text, or as a JSON
// object if that is the format of its log. where are pairs of what it is and where it is. It can be
// called before Serve, because the kernel queues connections.
func Announce(w io.Writer, program, format string, where ...string) error {
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

// Logger returns a logger that writes lines of at least a level to w, in the format json or text.
func Logger(w io.Writer, format string, least slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: least}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Capture makes packages that have no logger of the server's write to l. They are net/http's
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

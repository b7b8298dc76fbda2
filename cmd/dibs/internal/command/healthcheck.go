package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
)

// healthLimit bounds a health check. The proxy and the server answer within 3 s.
const healthLimit = 5 * time.Second

func (p *program) healthcheck() *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck [ADDR]",
		Short: "Ask a proxy or a server on this host whether it is ready",
		Long: `Asks a "dibs proxy" or a "dibs serve" on this host for /readyz, and prints the
answer. It is for containers, whose images have no curl.

ADDR is what the proxy has as --admin, or what the server has as --listen, such
as unix:/run/dibs/dibs.sock; by default $DIBS_PROXY_ADMIN. An address of all
interfaces, such as 0.0.0.0:9090, is asked over loopback. https://127.0.0.1:9090
is for a proxy with admin-tls, which $DIBS_PROXY_ADMIN_TLS says too, or a server
with --tls-cert. The certificate is not checked, because it is for the public
name. Takes at most 5 s.

Exits with 0 if it is ready, and with 1 if it is not, does not answer, or is
another service.`,
		Example: `  dibs healthcheck 127.0.0.1:9090
  dibs healthcheck unix:/run/dibs/dibs.sock
  DIBS_PROXY_ADMIN=0.0.0.0:9090 dibs healthcheck`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("name one address")
			}
			return nil
		},
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			secure := false
			if text := p.env.Getenv("DIBS_PROXY_ADMIN_TLS"); text != "" {
				var err error
				if secure, err = strconv.ParseBool(text); err != nil {
					return usagef("DIBS_PROXY_ADMIN_TLS: %q is neither true nor false", text)
				}
			}
			addr := p.env.Getenv("DIBS_PROXY_ADMIN")
			if len(args) > 0 {
				addr = args[0]
			}
			ready, socket, err := readyURL(addr, secure)
			if err != nil {
				return err
			}
			return p.checkHealth(cmd, ready, socket)
		}),
	}
}

// readyURL returns the URL of /readyz at an address that a proxy or a server listens on, or that it
// prints. If that is a Unix socket, it returns the path, too.
func readyURL(addr string, secure bool) (ready, socket string, err error) {
	if addr == "" {
		return "", "", usagef("no address is named; name the proxy's --admin or the server's --listen, such as 127.0.0.1:9090, or set DIBS_PROXY_ADMIN")
	}
	if path, ok := strings.CutPrefix(strings.TrimPrefix(addr, "http+"), "unix:"); ok && path != "" {
		return "http://dibs/readyz", path, nil
	}
	scheme, authority, ok := strings.Cut(strings.TrimSuffix(addr, "/"), "://")
	if !ok {
		scheme, authority = map[bool]string{false: "http", true: "https"}[secure], scheme
	}
	host, port, err := net.SplitHostPort(authority)
	u, unclear := url.Parse(scheme + "://" + authority)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || unclear != nil || u.Host != authority || scheme != "http" && scheme != "https" {
		return "", "", usagef("%q is not HOST:PORT, such as 127.0.0.1:9090, https://HOST:PORT or unix:PATH", addr)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip == netip.IPv4Unspecified() {
		host = "127.0.0.1"
	} else if err == nil && ip.IsUnspecified() {
		host = "::1"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/readyz", "", nil
}

// checkHealth prints what the URL answers, over the Unix socket unless that is "". It returns an
// error unless that is the answer of a proxy or a server that is ready.
func (p *program) checkHealth(cmd *cobra.Command, ready, socket string) error {
	// No proxy of the environment, because the address is of this host.
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see the help
	}
	if socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	client := http.Client{Timeout: healthLimit, Transport: transport}
	request, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, ready, nil)
	if err != nil {
		return usagef("%v", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return unanswered(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return unanswered(err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	switch {
	case response.StatusCode == http.StatusOK && line == server.Ready:
		_, err = fmt.Fprintln(p.env.Stdout, line)
		return err
	case response.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("it is not ready: %s: %s", response.Status, quote(line))
	}
	return fmt.Errorf("it answers /readyz with %s: %s; name the proxy's --admin or the server's --listen, because another service answers here",
		response.Status, quote(line))
}

// unanswered returns the error for a request without an answer.
func unanswered(err error) error {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fmt.Errorf("it does not answer within %v", healthLimit)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return fmt.Errorf("it does not answer: %w", err)
}

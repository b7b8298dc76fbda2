// agents shows an agent that pays an order by calling a tool, while its network loses answers. Without
// a guard the card is charged for each try. Behind dibs proxy --for=mcp it is charged once.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "agents:", err)
		os.Exit(1)
	}
}

// run lets the agent pay at the server, and behind a proxy.
func run(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "An agent pays one order. The answer is lost twice.\n\n%-24s%6s%9s   %s\n", "", "calls", "charges", "the agent hears")
	alone, behind := new(shop), new(shop)
	server, origin := httptest.NewServer(alone.handler()), httptest.NewServer(behind.handler())
	defer server.Close()
	defer origin.Close()
	if err := report(ctx, out, "the server alone", server.URL, alone); err != nil {
		return err
	}
	proxy, url, err := startProxy("--listen=127.0.0.1:0", "--store=memory:", "--for=mcp", "--upstream="+origin.URL)
	if err != nil {
		return err
	}
	defer func() {
		_ = proxy.Process.Kill()
		_ = proxy.Wait()
	}()
	if err := report(ctx, out, "dibs proxy --for=mcp", url, behind); err != nil {
		return err
	}
	if n := behind.charges(); n != 1 {
		return fmt.Errorf("behind the proxy the card was charged %d times", n)
	}
	return nil
}

// report lets an agent pay, and prints what happened.
func report(ctx context.Context, out io.Writer, name, url string, s *shop) error {
	network := &losing{answers: 2}
	answer, err := pay(ctx, url, network, "order-7")
	fmt.Fprintf(out, "%-24s%6d%9d   %s\n", name, network.calls, s.charges(), answer)
	return err
}

// startProxy starts dibs proxy, and returns its URL.
func startProxy(flags ...string) (*exec.Cmd, string, error) {
	cmd := exec.Command("dibs", append([]string{"proxy", "--access-log=false"}, flags...)...)
	cmd.Env = append(os.Environ(), "DIBS_PROXY_LOG_LEVEL=error")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, "", fmt.Errorf("dibs must be in PATH: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if url := regexp.MustCompile("http://[0-9.:]+").FindString(line); url != "" {
		return cmd, url, nil
	}
	return nil, "", fmt.Errorf("dibs proxy said %q: %w", line, err)
}

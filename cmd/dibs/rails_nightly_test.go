//go:build nightly && unix

package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// recipe starts a program of examples/ruby, or one that loads it, and returns it and its lines.
func recipe(t *testing.T, variables []string, name string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	client, err := filepath.Abs("../../clients/ruby/lib")
	testkit.Must(t, err)
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stderr = "../../examples/ruby", os.Stderr
	cmd.Env = append(append(os.Environ(), "RUBYLIB="+client), variables...)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewScanner(out)
}

// TestRails: see checkShop.
func TestRails(t *testing.T) {
	t.Parallel()
	testkit.Must(t, servertest.InstallRails())
	server := startServe(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	testkit.Must(t, free.Close())
	_, lines := recipe(t, []string{"DIBS_SERVER=" + server, "PORT=" + port}, "ruby", "rails.rb")
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("it says %q", lines.Text())
	}
	checkShop(t, server, "http://127.0.0.1:"+port)
}

// TestSidekiq: replies of two conversations are sent once, one after the other and in the order in which they
// were enqueued, by two workers, of which one is told to stop.
func TestSidekiq(t *testing.T) {
	t.Parallel()
	testkit.Must(t, servertest.InstallRails())
	variables := []string{"DIBS_SERVER=" + startServe(t), "REDIS_URL=" + servertest.Redis(t, nil).URL()}
	lines := make(chan string, 100)
	worker := func() *exec.Cmd {
		cmd, out := recipe(t, variables, "sidekiq", "-c", "4", "-r", "./sidekiq.rb")
		go func() {
			for out.Scan() {
				if what, _, _ := strings.Cut(out.Text(), " "); what == "begin" || what == "end" {
					lines <- out.Text()
				}
			}
		}()
		return cmd
	}
	first := worker()
	const jobs = 8
	recipe(t, variables, "ruby", "-r./sidekiq.rb", "-e",
		fmt.Sprintf(`%d.times { |i| ReplyJob.perform_later("conversation #{i %% 2}", i) }`, jobs))
	next := map[string]int{"0": 0, "1": 1} // by conversation: the reply that comes next
	runs := map[string]bool{}
	for i := range 2 * jobs {
		line := testkit.Await(t, "a reply is sent", lines)
		var conversation string
		var reply int
		what, rest, _ := strings.Cut(line, " conversation ")
		if _, err := fmt.Sscan(rest, &conversation, &reply); err != nil || next[conversation] != reply || runs[conversation] != (what == "end") {
			t.Fatalf("%s, while reply %d is next and a run is under way: %v", line, next[conversation], runs[conversation])
		}
		if runs[conversation] = what == "begin"; what == "end" {
			next[conversation] += 2
		}
		if i == jobs/2 {
			worker()
			testkit.Must(t, first.Process.Signal(syscall.SIGTERM)) // it ends what it has begun
		}
	}
}

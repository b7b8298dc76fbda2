//go:build nightly && unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
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

// TestRails: of two requests for a charge one makes it, and a report that is being made is refused.
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
	post := func(path string) string {
		response, err := http.DefaultClient.Do(testkit.Request(t.Context(), t, http.MethodPost, "http://127.0.0.1:"+port+path, http.NoBody))
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return fmt.Sprintf("%d %s %s%v", response.StatusCode, text, response.Header.Get("Retry-After"), err)
	}
	answers := make([]string, 2)
	var both sync.WaitGroup
	for i := range answers {
		both.Go(func() { answers[i] = post("/orders/17/charge") })
	}
	both.Wait()
	slices.Sort(answers)
	first := regexp.MustCompile(`^200 (\{"charge":\d+\}) <nil>$`).FindStringSubmatch(answers[0])
	if first == nil || answers[1] != "201 "+first[1]+" <nil>" {
		t.Errorf("the answers are %q", answers)
	}
	lease, err := serveClient(t, server).Acquire(t.Context(), "report monday", nil)
	testkit.Must(t, err)
	if got := post("/reports/monday"); got != "409  1<nil>" {
		t.Errorf("while another has the key: %s", got)
	}
	testkit.Must(t, lease.Release())
	if got := post("/reports/monday"); !regexp.MustCompile(`^200 {"fence":"\d+"} <nil>$`).MatchString(got) {
		t.Errorf("when the key is free: %s", got)
	}
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

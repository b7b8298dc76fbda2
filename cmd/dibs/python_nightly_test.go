//go:build nightly && unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func init() { prepare = servertest.InstallPython }

// pythonRecipe starts a program of examples/python, and returns it and its lines, of both outputs.
func pythonRecipe(t *testing.T, variables []string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	client, err := filepath.Abs("../../clients/python")
	testkit.Must(t, err)
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", args...)
	cmd.Dir = "../../examples/python"
	cmd.Env = append(append(os.Environ(), "PYTHONPATH="+client, "PYTHONDONTWRITEBYTECODE=1"), variables...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its workers end with it
	read, write, err := os.Pipe()
	testkit.Must(t, err)
	cmd.Stdout, cmd.Stderr = write, write
	testkit.Must(t, cmd.Start())
	testkit.Must(t, write.Close())
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait(); _ = read.Close() })
	return cmd, bufio.NewScanner(read)
}

// TestFlaskAndDjango: see checkShop.
func TestFlaskAndDjango(t *testing.T) {
	t.Parallel()
	testkit.Must(t, servertest.InstallPython())
	for _, program := range []string{"shop_flask.py", "shop_django.py"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			server := startServe(t)
			_, lines := pythonRecipe(t, []string{"DIBS_SERVER=" + server, "PORT=0"}, program)
			lines.Scan()
			port, ok := strings.CutPrefix(lines.Text(), "listening on ")
			if !ok {
				t.Fatalf("it says %q", lines.Text())
			}
			go func() {
				for lines.Scan() { // its log
				}
			}()
			checkShop(t, server, "http://127.0.0.1:"+port)
		})
	}
}

// TestCelery: each reply is sent once, although each was enqueued twice.
func TestCelery(t *testing.T) {
	t.Parallel()
	testkit.Must(t, servertest.InstallPython())
	variables := []string{"DIBS_SERVER=" + startServe(t), "REDIS_URL=" + servertest.Redis(t, nil).URL()}
	enqueue, said := pythonRecipe(t, variables, "replies_celery.py")
	for said.Scan() {
		t.Log(said.Text())
	}
	testkit.Must(t, enqueue.Wait())
	worker := []string{"-m", "celery", "-A", "replies_celery", "worker", "--concurrency", "4", "--loglevel", "WARNING"}
	_, lines := pythonRecipe(t, variables, worker...)
	var sent []string
	for len(sent) < 4 && lines.Scan() {
		t.Log(lines.Text())
		if reply := regexp.MustCompile(`\bsent (\d \d)$`).FindStringSubmatch(lines.Text()); reply != nil { // with Celery's own words before it
			sent = append(sent, reply[1])
		}
	}
	slices.Sort(sent)
	if want := []string{"0 0", "0 2", "1 1", "1 3"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q", sent)
	}
}

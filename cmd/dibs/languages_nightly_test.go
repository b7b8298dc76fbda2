//go:build nightly && unix

package main

import (
	"bufio"
	"encoding/json"
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

func init() { short = regexp.MustCompile("") }

// TestLanguagesMatrix strikes processes that use the clients at each step of each call.
func TestLanguagesMatrix(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.test(t, l.matrix, "DIBS_MATRIX=1")
		})
	}
}

// recipe starts a program in a folder, which finds our clients for Ruby and Python, and returns it and the lines
// that it prints.
func recipe(t *testing.T, folder string, variables []string, name string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	clients, err := filepath.Abs("../../clients")
	testkit.Must(t, err)
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stderr = folder, os.Stderr
	cmd.Env = append(append(os.Environ(), "RUBYLIB="+clients+"/ruby/lib", "PYTHONPATH="+clients+"/python", "PYTHONDONTWRITEBYTECODE=1"), variables...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its workers end with it
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() })
	return cmd, bufio.NewScanner(out)
}

// checkShop: of two requests to a shop for a charge one makes it, and a report that is being made is refused. The
// shop uses the server.
func checkShop(t *testing.T, server, shop string) {
	t.Helper()
	post := func(path string) string {
		response, err := http.DefaultClient.Do(testkit.Request(t.Context(), t, http.MethodPost, shop+path, http.NoBody))
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return fmt.Sprintf("%d %s %s%v", response.StatusCode, strings.Join(strings.Fields(string(text)), ""), response.Header.Get("Retry-After"), err)
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
	if got := post("/reports/monday"); !strings.HasPrefix(got, "409 ") || !strings.HasSuffix(got, " 1<nil>") {
		t.Errorf("while another has the key: %s", got)
	}
	testkit.Must(t, lease.Release())
	if got := post("/reports/monday"); !regexp.MustCompile(`^200 {"fence":"?\d+"?} <nil>$`).MatchString(got) {
		t.Errorf("when the key is free: %s", got)
	}
}

// installed returns a folder with a program, the client and packages of npm.
func installed(t *testing.T, program string, packages ...string) string {
	t.Helper()
	folder := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(folder, "package.json"), []byte("{}"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(folder, filepath.Base(program)), testkit.ReadFile(t, program), 0o600))
	client, err := filepath.Abs("../../clients/js")
	testkit.Must(t, err)
	install := exec.CommandContext(t.Context(), "npm", append([]string{"install", "--no-audit", "--no-fund", "--install-links", client}, packages...)...)
	install.Dir = folder
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return folder
}

// TestExpress: see checkShop.
func TestExpress(t *testing.T) {
	t.Parallel()
	server := startServe(t)
	_, lines := recipe(t, installed(t, "../../examples/js/express.mjs", "express@5"), []string{"DIBS_SERVER=" + server, "PORT=0"}, "node", "express.mjs")
	if !lines.Scan() {
		t.Fatal("it does not listen")
	}
	checkShop(t, server, lines.Text())
}

// TestBullMQ: of twelve jobs for six invoices each invoice is sent once, and those of a customer one after
// the other. A job that finds its customer's key held comes again, and loses no attempt.
func TestBullMQ(t *testing.T) {
	t.Parallel()
	server := startServe(t)
	folder := installed(t, "../../examples/js/bullmq.mjs", "bullmq@6", "ioredis@5")
	variables := []string{"DIBS_SERVER=" + server, "REDIS=" + servertest.Redis(t, nil).URL()}
	lease, err := serveClient(t, server).Acquire(t.Context(), "customer 0", nil)
	testkit.Must(t, err)
	_, lines := recipe(t, folder, variables, "node", "bullmq.mjs")
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the worker says %q", lines.Text())
	}
	_, results := recipe(t, folder, variables, "node", "--input-type=module", "-e", `
		import { Queue, QueueEvents } from "bullmq";
		import Redis from "ioredis";
		const connection = new Redis(process.env.REDIS, { maxRetriesPerRequest: null });
		const queue = new Queue("invoices", { connection });
		const events = new QueueEvents("invoices", { connection });
		await events.waitUntilReady();
		const jobs = [];
		for (let i = 0; i < 12; i++) jobs.push(await queue.add("send", { customer: i % 2, invoice: i % 6 }));
		while ((await queue.getDelayedCount()) === 0) await new Promise((resolve) => setTimeout(resolve, 50));
		console.log("delayed");
		console.log(JSON.stringify((await Promise.all(jobs.map((job) => job.waitUntilFinished(events)))).map((r) => r.sent)));`)
	if !results.Scan() || results.Text() != "delayed" {
		t.Fatalf("the queue says %q", results.Text())
	}
	testkit.Must(t, lease.Release())
	if !results.Scan() {
		t.Fatal("the jobs failed")
	}
	var sent []int
	testkit.Must(t, json.Unmarshal(results.Bytes(), &sent))
	if want := []int{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}; !slices.Equal(sent, want) {
		t.Errorf("the results are %v, want %v", sent, want)
	}
	runs := map[string]string{} // by customer: what runs
	for range 12 {
		if !lines.Scan() {
			t.Fatal("the worker ended")
		}
		what, of, _ := strings.Cut(lines.Text(), " ")
		customer, invoice, _ := strings.Cut(of, " ")
		switch {
		case what == "begin" && runs[customer] == "":
			runs[customer] = invoice
		case what == "end" && runs[customer] == invoice:
			runs[customer] = ""
		default:
			t.Errorf("%s while %q runs", lines.Text(), runs[customer])
		}
	}
}

// TestTypeScript: the types of the installed client are those that programs count on.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	check := exec.CommandContext(t.Context(), "npx", "--no-install", "tsc", "--noEmit", "--strict", "--module", "nodenext", "--target", "es2022",
		"--lib", "es2022,dom,esnext.disposable", "--types", "node", "types.mts")
	check.Dir = installed(t, "testdata/types.mts", "typescript@5", "@types/node@20")
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
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
	_, lines := recipe(t, "../../examples/ruby", []string{"DIBS_SERVER=" + server, "PORT=" + port}, "ruby", "rails.rb")
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
		cmd, out := recipe(t, "../../examples/ruby", variables, "sidekiq", "-c", "4", "-r", "./sidekiq.rb")
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
	recipe(t, "../../examples/ruby", variables, "ruby", "-r./sidekiq.rb", "-e",
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

func init() { prepare = servertest.InstallPython }

// pythonRecipe starts a program of examples/python. It prints both of its outputs.
func pythonRecipe(t *testing.T, variables []string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	return recipe(t, "../../examples/python", variables, "sh", append([]string{"-c", `exec "$0" "$@" 2>&1`, "/usr/bin/python3"}, args...)...)
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

// TestThousandPayments: a thousand workers are killed, and a thousand orders are paid once.
func TestThousandPayments(t *testing.T) {
	t.Parallel()
	checkPayments(t, 125, 8)
}

//go:build nightly && unix

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// installed returns a folder with a recipe of examples/js, the client and packages of npm.
func installed(t *testing.T, recipe string, packages ...string) string {
	t.Helper()
	folder := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(folder, "package.json"), []byte("{}"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(folder, recipe), testkit.ReadFile(t, "../../examples/js/"+recipe), 0o600))
	client, err := filepath.Abs("../../clients/js")
	testkit.Must(t, err)
	install := exec.CommandContext(t.Context(), "npm", append([]string{"install", "--no-audit", "--no-fund", "--install-links", client}, packages...)...)
	install.Dir = folder
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return folder
}

// node starts a program of the folder, and returns its lines.
func node(t *testing.T, folder string, variables []string, args ...string) *bufio.Scanner {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = folder, append(os.Environ(), variables...), os.Stderr
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return bufio.NewScanner(out)
}

// TestExpress: see checkShop.
func TestExpress(t *testing.T) {
	t.Parallel()
	server := startServe(t)
	lines := node(t, installed(t, "express.mjs", "express@5"), []string{"DIBS_SERVER=" + server, "PORT=0"}, "express.mjs")
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
	folder := installed(t, "bullmq.mjs", "bullmq@6", "ioredis@5")
	variables := []string{"DIBS_SERVER=" + server, "REDIS=" + servertest.Redis(t, nil).URL()}
	lease, err := serveClient(t, server).Acquire(t.Context(), "customer 0", nil)
	testkit.Must(t, err)
	lines := node(t, folder, variables, "bullmq.mjs")
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the worker says %q", lines.Text())
	}
	results := node(t, folder, variables, "--input-type=module", "-e", `
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

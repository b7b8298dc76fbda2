//go:build nightly

package browser

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// guide is the page that tells of the nights.
const guide = "../../docs/operate/page.md"

// byCommand runs the commands of a night in the guide. ID stands for that of the attempt.
func (n *night) byCommand(number int, id string) string {
	n.Helper()
	blocks := regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllSubmatch(testkit.ReadFile(n, guide), -1)
	if len(blocks) != 3 {
		n.Fatalf("the guide has %d blocks of commands", len(blocks))
	}
	text, err := n.command("sh", "-e", "-c", strings.ReplaceAll(string(blocks[number-1][1]), "ID", id)).CombinedOutput()
	if err != nil {
		n.Fatalf("the commands of night %d: %v\n%s", number, err, text)
	}
	return string(text)
}

// alert checks that an alert of deploy/alerts.yaml, which the guide names, looks at a metric.
func (n *night) alert(name, metric string) {
	n.Helper()
	if !strings.Contains(string(testkit.ReadFile(n, guide)), "`"+name+"`") {
		n.Errorf("the guide does not name %s", name)
	}
	_, rule, _ := strings.Cut(string(testkit.ReadFile(n, "../../deploy/alerts.yaml")), "- alert: "+name+"\n")
	rule, _, _ = strings.Cut(rule, "- alert: ")
	if !strings.Contains(rule, metric) {
		n.Errorf("%s does not look at %s", name, metric)
	}
}

// stuck starts a job that hangs while its lease is renewed, and one that waits for its key.
func (n *night) stuck(flags ...string) (first, second *running) {
	n.Helper()
	testkit.Must(n, syscall.Mkfifo(filepath.Join(n.folder, "export"), 0o600)) // nobody writes to it
	for name, text := range map[string]string{"report.sh": "touch started; cat export", "archive.sh": "echo archived"} {
		testkit.Must(n, os.WriteFile(filepath.Join(n.folder, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	}
	run := append(append([]string{program(n.T), "run"}, flags...), "nightly-report", "--")
	first = n.begin(append(run[:len(run):len(run)], "./report.sh")...)
	testkit.Eventually(n, "the report has begun", func() bool {
		_, err := os.Stat(filepath.Join(n.folder, "started"))
		return err == nil
	})
	return first, n.begin(append(run[:len(run):len(run)], "./archive.sh")...)
}

// TestStuckWorker is the first night: the alert says that a caller waits long. The page shows
// who holds the key and that its lease is renewed, and frees it.
func TestStuckWorker(t *testing.T) {
	scene := func(t *testing.T) (n *night, page string, first, second *running) {
		n = newNight(t)
		page = n.after(n.begin(program(t), "serve", "--listen", "127.0.0.1:0"), "listening on ")
		first, second = n.stuck()
		n.alert("DibsWaitsLong", "dibs_oldest_wait_seconds")
		n.metric(page, "dibs_oldest_wait_seconds", "")
		return n, page, first, second
	}
	freed := func(n *night, first, second *running) {
		testkit.Await(n, "the report is ended", first.ended)
		testkit.Await(n, "the next job runs", second.ended)
		if code := first.ProcessState.ExitCode(); code != 70 {
			n.Errorf("the stuck run exits with %d; want 70", code)
		}
		if out := second.out.String(); !strings.Contains(out, "archived") || second.ProcessState.ExitCode() != 0 {
			n.Errorf("the next run prints %s and exits with %d", out, second.ProcessState.ExitCode())
		}
	}
	t.Run("by clicks", func(t *testing.T) {
		n, page, first, second := scene(t)
		b := pictured(t, 580, story{Since: 372, Waited: 312})
		b.run(chromedp.Navigate(page))
		b.sees("#waits", "report.sh")
		b.sees("#waits", "archive.sh")
		b.sees("#counts", "1 waiter, ")
		b.picture("stuck-worker-waits")
		b.run(chromedp.Click(`//bdi[text()="nightly-report"]`, chromedp.BySearch))
		b.sees("#holders", "unless it is renewed")
		b.sees("#places", "archive.sh")
		b.click("Release")
		b.sees("#sure", "This takes the key from")
		b.sees("#sure", "The waiter gets the key.")
		b.picture("stuck-worker-release")
		b.click("Yes: release")
		b.sees("#done", "Done")
		freed(n, first, second)
		b.sees("#meaning", "free")
	})
	t.Run("by command", func(t *testing.T) {
		n, _, first, second := scene(t)
		if out := n.byCommand(1, ""); !strings.Contains(out, "(report.sh), for") || !strings.Contains(out, "(archive.sh), waits") {
			t.Errorf("the commands print %s", out)
		}
		freed(n, first, second)
	})
}

// service is a service that makes charges. It continues with each after end.
type service struct {
	*httptest.Server
	charges atomic.Int64
	came    chan struct{}
	end     func() // ends all charges
}

// answer is what it answers.
const answer = `{"id":"ch_1","amount":1999}`

func newService(t *testing.T) *service {
	t.Helper()
	over := make(chan struct{})
	s := &service{came: make(chan struct{}, 1), end: sync.OnceFunc(func() { close(over) })}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.charges.Add(1)
		s.came <- struct{}{}
		<-over
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(func() {
		s.end()
		s.Close()
	})
	return s
}

// answered checks that a retry gets the answer and that the service has made one charge.
func (n *night) answered(s *service, url string) {
	n.Helper()
	status, text, err := n.order(n.Context(), url)
	if err != nil || status != http.StatusCreated || text != answer || s.charges.Load() != 1 {
		n.Errorf("the retry gets %d %s, %v, after %d charges", status, text, err, s.charges.Load())
	}
}

// TestCustomersConflict is the second night: a customer gets 409 again and again. The page says
// that the first request still runs, and where.
func TestCustomersConflict(t *testing.T) {
	scene := func(t *testing.T) (n *night, s *service, url, page string) {
		n, s = newNight(t), newService(t)
		_, url, page = n.proxy(s.Server)
		ctx, giveUp := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _, _ = n.order(ctx, url)
		}()
		testkit.Await(t, "the service has the request", s.came)
		giveUp()
		testkit.Await(t, "the customer gives up", gone)
		status, text, err := n.order(t.Context(), url)
		if err != nil || status != http.StatusConflict || !strings.Contains(text, "still running") {
			t.Fatalf("the retry gets %d %s, %v", status, text, err)
		}
		n.metric(page, "dibs_request_duration_seconds_count", `dibs_outcome="conflict"`)
		return n, s, url, page
	}
	t.Run("by clicks", func(t *testing.T) {
		n, s, url, page := scene(t)
		b := pictured(t, 640, story{Since: 97})
		b.run(chromedp.Navigate(page))
		b.holds(`document.querySelector('#traffic .card:nth-child(3)')?.innerText.startsWith('1\nconflicts')`)
		b.run(chromedp.SendKeys("#q", "order-17"+kb.Enter))
		b.sees("#found", "1 key")
		b.run(chromedp.Click("#found li a"))
		b.sees("#meaning", "A process holds the key")
		b.sees("#holders", "dibs proxy")
		b.picture("conflict-runs")
		s.end()
		b.sees("#meaning", "The last holder left a record")
		b.sees("#facts", "HTTP 201")
		n.answered(s, url)
	})
	t.Run("by command", func(t *testing.T) {
		n, s, url, _ := scene(t)
		if out := n.byCommand(2, ""); !strings.Contains(out, "state      held") || !strings.Contains(out, "(dibs proxy), for") {
			t.Errorf("the command prints %s", out)
		}
		s.end()
		testkit.Eventually(t, "the answer is stored", func() bool { return strings.Contains(n.byCommand(2, ""), "record     HTTP 201") })
		n.answered(s, url)
	})
}

// killed lets a proxy be killed while a request runs that may run at most once, and returns the
// address and the page of another one.
func (n *night) killed(s *service, flags ...string) (url, page, id string) {
	n.Helper()
	flags = append(flags, "--lease", "1s", "--on-crash", "at-most-once")
	first, to, _ := n.proxy(s.Server, flags...)
	_, url, page = n.proxy(s.Server, flags...)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _, _ = n.order(n.Context(), to)
	}()
	testkit.Await(n, "the service has the request", s.came)
	testkit.Must(n, first.Process.Kill())
	testkit.Await(n, "the customer's connection breaks", gone)
	testkit.Eventually(n, "the outcome is unknown", func() bool {
		status, text, err := n.order(n.Context(), url)
		testkit.Must(n, err)
		_, id, _ = strings.Cut(text, "urn:dibs:claim:")
		id, _, _ = strings.Cut(id, `"`)
		return status == http.StatusConflict && id != ""
	})
	return url, page, id
}

// TestUnknownOutcome is the third night: a proxy was killed while a charge was made. The page asks
// the operator, and the retry gets the answer of the charge that was made.
func TestUnknownOutcome(t *testing.T) {
	scene := func(t *testing.T) (n *night, s *service, url, page, id string) {
		n, s = newNight(t), newService(t)
		url, page, id = n.killed(s)
		n.alert("DibsOutcomeUnknown", "dibs_unknown")
		n.metric(page, "dibs_unknown", "")
		n.metric(page, "dibs_request_duration_seconds_count", `dibs_outcome="unknown"`)
		return n, s, url, page, id
	}
	t.Run("by clicks", func(t *testing.T) {
		n, s, url, page, _ := scene(t)
		b := pictured(t, 620, story{Since: 254, Traffic: retries})
		b.run(chromedp.Navigate(page))
		b.click("1 outcome to be decided")
		b.sees("#undecided", "order-17")
		b.picture("unknown-outcome-decide")
		b.click("It happened: store the answer")
		b.sees("#sure", "retries of this request get the answer")
		b.run(chromedp.SetValue("#sure [name=status]", "201"), chromedp.SetValue("#sure textarea", answer))
		b.picture("unknown-outcome-answer")
		b.click("Yes: store the answer")
		b.sees("#done", "Done")
		b.sees("#facts", "HTTP 201")
		n.answered(s, url)
	})
	t.Run("by command", func(t *testing.T) {
		n, s, url, _, id := scene(t)
		if out := n.byCommand(3, id); !strings.Contains(out, "state      unknown") || !strings.Contains(out, id) {
			t.Errorf("the commands print %s", out)
		}
		n.answered(s, url)
	})
}

// TestDemo: "dibs demo" prints the address of a page that shows its storm.
func TestDemo(t *testing.T) {
	n := newNight(t)
	p := n.begin(program(t), "demo")
	namespace := n.after(p, "--namespace ")
	page := n.after(p, "finds your key:\n\n  ")
	n.stuck("--namespace", namespace)
	n.killed(newService(t), "--namespace", namespace)
	for _, scheme := range []string{"light", "dark"} {
		b := pictured(t, 720, story{Since: 372, Waited: 312, Traffic: storm})
		b.scheme(scheme)
		b.run(chromedp.Navigate(page))
		b.sees("#health", "in the namespace "+namespace)
		b.holds(`[0, 1, 2].every(i => document.querySelectorAll('#traffic b')[i].innerText !== '0')`)
		b.sees("#waits", "archive.sh")
		b.sees("#undecided", "order-17")
		b.picture("page-" + scheme)
	}
	testkit.Must(t, p.Process.Signal(os.Interrupt))
	testkit.Await(t, "the demo ends", p.ended)
}

//go:build unix

package command_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

const docs = "../../../../docs"

// block is a block of code on a page, with the block of text that follows it.
type block struct {
	language, code string
	output         string
	shown          bool // there is such a text
}

// blocks returns the blocks of a page, which is named from docs. Blocks of sh and go are
// run; what cannot be run here has another language, such as console or golang.
func blocks(t *testing.T, name string) []block {
	t.Helper()
	page := testkit.ReadFile(t, filepath.Join(docs, name))
	var all []block
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if m[1] == "text" && len(all) > 0 {
			if last := &all[len(all)-1]; !last.shown { // a second one shows something else
				last.output, last.shown = m[2], true
			}
			continue
		}
		all = append(all, block{language: m[1], code: m[2]})
	}
	return all
}

// quick are the pages whose commands and programs take a second or two. The nightly
// tests have the others.
var quick = []string{
	"start/library.md", "start/proxy.md", "start/command.md", "start/jobs.md", "guides/deploys.md",
	"guides/retrying-clients.md", "guides/webhooks.md", "operate/incidents.md",
}

// TestGuides: the commands and programs on the quick pages do what the pages say.
func TestGuides(t *testing.T) {
	t.Parallel()
	for _, page := range quick {
		t.Run(page, func(t *testing.T) { checkGuide(t, page) })
	}
}

// runs are the languages of blocks that are run.
var runs = []string{"sh", "go"}

// pages returns every page below docs, by its name from there.
func pages(t *testing.T) (all []string) {
	t.Helper()
	testkit.Must(t, fs.WalkDir(os.DirFS(docs), ".", func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".md") {
			all = append(all, name)
		}
		return err
	}))
	return all
}

// checkGuide runs a page. What differs from run to run is written … there.
func checkGuide(t *testing.T, page string) {
	t.Parallel()
	b := newBench(t)
	var charges atomic.Int64
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"charge":%d}`, charges.Add(1))
	}))
	t.Cleanup(origin.Close)
	here := strings.NewReplacer("127.0.0.1:8080", servertest.Addr(t), "http://127.0.0.1:3000", origin.URL)
	all, env := blocks(t, page), os.Environ()
	if slices.ContainsFunc(all, func(b block) bool { return strings.Contains(b.code, "DATABASE_URL") }) {
		database := fmt.Sprintf("guide%d", schemas.Add(1))
		sharedPostgres().Query("CREATE DATABASE " + database)
		env = append(env, "DATABASE_URL="+strings.Replace(sharedPostgres().URL(), "/postgres?", "/"+database+"?", 1))
	}
	ran := 0
	for i, block := range all {
		program, args := "sh", []string{"-c", here.Replace(block.code)}
		switch block.language {
		case "sh":
		case "go":
			source := b.path(fmt.Sprintf("block%d.go", i))
			testkit.Must(t, os.WriteFile(source, []byte(block.code), 0o644))
			program, args = b.path(fmt.Sprintf("block%d", i)), nil
			// In this workspace, which knows all modules.
			testkit.Must(t, servertest.Build(program, source))
		default:
			continue
		}
		// One that waits for what never comes is ended.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = b.dir
		cmd.Env = append(env[:len(env):len(env)], "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		output := b.path(fmt.Sprintf("output%d", i))
		// A file, so that what a block leaves in the background holds nothing up.
		f, err := os.Create(output)
		testkit.Must(t, err)
		cmd.Stdout, cmd.Stderr = f, f
		err = cmd.Run()
		cancel()
		testkit.Must(t, f.Close())
		got := b.read(filepath.Base(output))
		if err != nil {
			t.Errorf("%s\nended with %v:\n%s", block.code, err, got)
		}
		if block.shown && !shows(block.output, got) || !block.shown && got != "" {
			t.Errorf("%s\nprints\n%s\nthe page shows\n%s", block.code, got, block.output)
		}
		ran++
	}
	if ran == 0 {
		t.Error("no block was run")
	}
}

// TestItem18CurlFailsWhenRefused: the guide's curl line does not exit with 0 when it was
// refused: because the first try still runs (with --max-time 1), or for another body.
func TestItem18CurlFailsWhenRefused(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?s)\tcurl (.*?/charges)\n`).FindStringSubmatch(blocks(t, "guides/retrying-clients.md")[1].code)
	if line == nil {
		t.Fatal("the guide has no curl line")
	}
	over := make(chan struct{})
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	m, err := idempotency.New(client, &idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	server := httptest.NewServer(m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over })))
	t.Cleanup(func() {
		close(over)
		server.Close()
		testkit.Must(t, m.Drain(context.Background()))
		testkit.Must(t, client.Close())
		testkit.Must(t, store.Close())
	})
	for _, change := range []string{"--max-time 1 -d amount=700", "--max-time 20 -d amount=800"} {
		b := newBench(t)
		text := strings.NewReplacer("-d amount=700", change, "--retry 5", "--retry 1", "http://127.0.0.1:8080", server.URL).Replace(line[1])
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "curl "+text)
		cmd.Dir = b.dir
		out, err := cmd.CombinedOutput()
		if _, failed := errors.AsType[*exec.ExitError](err); !failed || len(out) > 0 {
			t.Errorf("curl with %s ended with %v and printed %q", change, err, out)
		}
	}
}

// shows reports whether got is what a page shows.
func shows(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}

// TestPagesLinks: what the pages link to is there, and so is the heading.
func TestPagesLinks(t *testing.T) {
	all := pages(t)
	for _, page := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md"} {
		all = append(all, "../"+page)
	}
	for _, page := range all {
		text := readPage(t, page)
		for _, m := range regexp.MustCompile(`\]\(([^):#]*)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
			to := page
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(filepath.Join(docs, to)); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if m[2] != "" && !slices.Contains(anchors(readPage(t, to)), m[2]) {
				t.Errorf("%s: %s has no heading for %s", page, to, m[2])
			}
		}
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text := testkit.ReadFile(t, filepath.Join(docs, name))
	return string(text)
}

// anchors returns what links to the headings of a page end in.
func anchors(page string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		word := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, "#"+strings.ReplaceAll(word, " ", "-"))
	}
	return all
}

const readme = "../../../../README.md"

// readmeProgram makes a program of the README's two pieces of Go.
const readmeProgram = `package main

import (
	"context"
	"net/http"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/stores/memstore"
)

func main() {
	ctx := context.Background()
	store, err := memstore.New(nil)
	if err != nil {
		panic(err)
	}
	client, err := dibs.New(store, nil)
	if err != nil {
		panic(err)
	}
	if err := section(ctx, client); err != nil {
		panic(err)
	}
	serve(client, http.NotFoundHandler())
}

func send(context.Context) error { return nil }

func serve(client *dibs.Client, handler http.Handler) {
	guard, err := idempotency.New(client, nil)
	if err != nil {
		panic(err)
	}
	server := new(http.Server)
	HANDLER
}

func section(ctx context.Context, client *dibs.Client) error {
	SECTION
	return err
}
`

// TestReadmeCode: the README's Go compiles, in a module that uses the clone as the README says, and
// the program is installed.
func TestReadmeCode(t *testing.T) {
	page := string(testkit.ReadFile(t, readme))
	piece := func(begin string) string {
		found := regexp.MustCompile("`(" + regexp.QuoteMeta(begin) + "[^`]*)`").FindStringSubmatch(page)
		if found == nil {
			t.Fatalf("the README has no line of Go that begins with %s", begin)
		}
		return found[1]
	}
	b := newBench(t)
	b.write(t, "main.go", strings.NewReplacer("HANDLER", piece("server."), "SECTION", piece("err := client.")).Replace(readmeProgram))
	_, rest, _ := strings.Cut(page, "\n## Get it\n")
	found := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindStringSubmatch(rest)
	clone, err := filepath.Abs(filepath.Dir(readme))
	testkit.Must(t, err)
	testkit.Must(t, os.Symlink(clone, b.path("dibs")))
	cmd := exec.Command("sh", "-ec", "go mod init example.org/shop\n"+found[1]+"go vet .\nbin/dibs --version >version")
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), "GOBIN="+b.path("bin"),
		"CGO_ENABLED=0", "GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath") // as make build, so that it is compiled once
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", found[1], err, out)
	}
	if version := b.read("version"); !strings.HasPrefix(version, "dibs ") {
		t.Errorf("the program says %q", version)
	}
}

// TestReadmeCommands: the commands and flags that the README names are there.
func TestReadmeCommands(t *testing.T) {
	page := testkit.ReadFile(t, readme)
	commands := regexp.MustCompile("`dibs ([a-z]+)([^`]*)`").FindAllStringSubmatch(string(page), -1)
	if len(commands) < 5 {
		t.Fatalf("the README shows %d commands", len(commands))
	}
	for _, c := range commands {
		help, err := exec.Command(binary, c[1], "--help").CombinedOutput()
		if err != nil {
			t.Errorf("dibs %s: %v\n%s", c[1], err, help)
		}
		ours, _, _ := strings.Cut(c[2], " -- ")
		for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(ours, -1) {
			if !strings.Contains(string(help), flag+" ") {
				t.Errorf("dibs %s has no %s", c[1], flag)
			}
		}
	}
}

// TestExitCodesPage: docs/operate/incidents.md lists the exit codes of "dibs run" that its help lists.
func TestExitCodesPage(t *testing.T) {
	_, page, _ := strings.Cut(readPage(t, "operate/incidents.md"), "\n## Exit codes\n")
	page, _, _ = strings.Cut(page, "Of every other command")
	help, err := exec.Command(binary, "run", "--help").CombinedOutput()
	testkit.Must(t, err)
	listed := func(text, line string) []string {
		var codes []string
		for _, m := range regexp.MustCompile(line).FindAllStringSubmatch(text, -1) {
			codes = append(codes, strings.Split(m[1], ", ")...)
		}
		slices.Sort(codes)
		return codes
	}
	ours := listed(page, `(?m)^\| ((?:6[0-9]|7[0-9]|1[0-9]{2})(?:, [0-9]+)*) \|`)
	theirs := append(listed(string(help), `(?m)^  ([0-9]+(?:, [0-9]+)*)  `), "126", "127")
	slices.Sort(theirs)
	if len(ours) < 6 || !slices.Equal(ours, theirs) {
		t.Errorf("the page lists %q, the help %q", ours, theirs)
	}
}

// databases is the page that has a server for each database.
const databases = "start/database.md"

// TestDatabaseGuide: each server of the page, or that it links to, answers the page's requests as the page shows, exits
// with 0 when it is told to, and gives the same answers when it is started again, even after it
// was killed, by the test or by the page's commands.
func TestDatabaseGuide(t *testing.T) {
	t.Parallel()
	var commands []block
	var sqlite string // the page has that program, and links to the others
	for _, b := range blocks(t, databases) {
		switch b.language {
		case "sh":
			commands = append(commands, b)
		case "go":
			sqlite = b.code
		}
	}
	if len(commands) != 2 {
		t.Fatalf("the page has %d blocks of commands; this test knows 2", len(commands))
	}
	requests, killed := commands[0], commands[1]
	for name, env := range map[string]func(*testing.T) string{
		"sqlitestore": func(*testing.T) string { return "" },
		"pgstore":     func(t *testing.T) string { return "DATABASE_URL=" + servertest.Postgres(t, nil).URL() },
		"mysqlstore":  func(t *testing.T) string { return "MYSQL_URL=" + servertest.MariaDB(t, nil).URL() },
		"redisstore":  func(t *testing.T) string { return "REDIS_URL=" + servertest.Redis(t, nil).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			here := strings.NewReplacer("127.0.0.1:8080", servertest.Addr(t))
			source := sqlite
			if folder := map[string]string{"pgstore": "postgresql", "mysqlstore": "mysql", "redisstore": "redis"}[name]; folder != "" {
				source = string(testkit.ReadFile(t, "testdata/shop/"+folder+"/main.go"))
			}
			if !strings.Contains(source, `"github.com/dibs-go/dibs/stores/`+name+`"`) {
				t.Fatalf("the program for %s does not import it", name)
			}
			b.write(t, "main.go", here.Replace(source))
			server := filepath.Join(b.dir, "server")
			testkit.Must(t, servertest.Build(server, b.path("main.go")))
			if cure := map[string]string{"mysqlstore": "write mysql://", "redisstore": "REDIS_URL must be an address such as redis://"}[name]; cure != "" {
				p := b.command()
				p.Cmd.Path, p.Args = server, []string{server}
				p.begin(t)
				if code := p.code(t); code != 1 || !strings.Contains(p.stderr.String(), cure) {
					t.Errorf("without an address the server exited with %d and said %q", code, p.stderr.String())
				}
			}
			b.env = []string{env(t)}
			for _, end := range []struct {
				signal syscall.Signal
				code   int
			}{{syscall.SIGKILL, -1}, {syscall.SIGTERM, 0}, {syscall.SIGINT, 0}} {
				p := b.command()
				p.Cmd.Path, p.Args = server, []string{server}
				p.begin(t)
				curl := exec.CommandContext(t.Context(), "sh", "-c", here.Replace(requests.code))
				curl.Env = os.Environ()
				if got, err := curl.CombinedOutput(); err != nil || string(got) != requests.output {
					t.Errorf("the requests print %q, %v; the page shows %q", got, err, requests.output)
				}
				p.signal(t, end.signal)
				if code := p.code(t); code != end.code || p.stderr.String() != "" {
					t.Errorf("after %v the server exited with %d and said %q", end.signal, code, p.stderr.String())
				}
			}
			sh := exec.CommandContext(t.Context(), "sh", "-c", here.Replace(strings.Replace(killed.code, "go build -o shop .", "ln server shop", 1)))
			sh.Dir, sh.Env = b.dir, append(os.Environ(), b.env...)
			if got, err := sh.Output(); string(got) != killed.output {
				t.Errorf("the commands around kill -9 print %q, %v; the page shows %q", got, err, killed.output)
			}
		})
	}
}

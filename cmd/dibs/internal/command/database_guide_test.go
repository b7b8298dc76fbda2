//go:build unix

package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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

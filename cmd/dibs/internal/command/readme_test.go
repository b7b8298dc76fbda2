//go:build unix

package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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

package command_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

const readme = "../../../../README.md"

// readmeProgram makes a program of the README's two pieces of Go.
var readmeProgram = [3]string{
	`package main

import (
	"context"
	"net/http"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/sqlitestore"
)

func main() { _, _ = serve(nil), section(context.Background(), nil) }

func send(context.Context) error { return nil }

func serve(handler http.Handler) error {
`, `}

func section(ctx context.Context, client *dibs.Client) error {
`, `
	return err
}
`}

// TestReadmeCode: the README's Go compiles.
func TestReadmeCode(t *testing.T) {
	page, err := os.ReadFile(readme)
	must(t, err)
	found := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	if len(found) != 2 {
		t.Fatalf("the README has %d pieces of Go; this test knows 2", len(found))
	}
	b := newBench(t)
	source := b.path("main.go")
	text := readmeProgram[0] + found[0][1] + readmeProgram[1] + found[1][1] + readmeProgram[2]
	must(t, os.WriteFile(source, []byte(text), 0o644))
	if out, err := exec.Command("go", "vet", source).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReadmeDemo: the README's first command shows what it says, but for the
// numbers, of which those that matter are compared.
func TestReadmeDemo(t *testing.T) {
	page, err := os.ReadFile(readme)
	must(t, err)
	_, rest, ok := strings.Cut(string(page), "go run ./cmd/dibs demo\n```\n\n```\n")
	want, _, ended := strings.Cut(rest, "\n```")
	if !ok || !ended {
		t.Fatal("the README does not show what the demo prints")
	}
	out, err := exec.Command(binary, "demo", "--exit").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	number := regexp.MustCompile(`\$?[0-9][0-9.]*`)
	space := regexp.MustCompile(` +`)
	// The one that is alone is charged once where the first proxy was killed before it came.
	alone := regexp.MustCompile(`(charged more than once +)149`)
	shape := func(text string) []string {
		var lines []string
		text = alone.ReplaceAllString(text, "${1}150")
		for line := range strings.Lines(strings.TrimSpace(text)) {
			if !strings.Contains(line, "charged more than once") && !strings.Contains(line, "orders lost") {
				line = number.ReplaceAllString(line, "N")
			}
			lines = append(lines, strings.TrimSpace(space.ReplaceAllString(line, " ")))
		}
		return lines
	}
	got, shown := shape(string(out)), shape(want)
	for i := range max(len(got), len(shown)) {
		if i >= len(got) || i >= len(shown) || got[i] != shown[i] {
			t.Fatalf("the demo prints\n%s\nthe README shows\n%s", out, want)
		}
	}
}

// TestReadmeCommands: the commands and flags that the README names are there.
func TestReadmeCommands(t *testing.T) {
	page, err := os.ReadFile(readme)
	must(t, err)
	commands := regexp.MustCompile(`(?m)^dibs ([a-z]+)(.*)$`).FindAllStringSubmatch(string(page), -1)
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

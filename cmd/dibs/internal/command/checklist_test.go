package command

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

const top = "../../../.."

// checklist returns the rows of the checklist in docs/operate/before-production.md: what must be so, and how it is
// checked.
func checklist(t *testing.T) (rows [][2]string) {
	t.Helper()
	_, text, found := strings.Cut(readTop(t, "docs/operate/before-production.md"), "# Before production\n")
	if !found {
		t.Fatal("docs/operate/before-production.md has no checklist")
	}
	for _, m := range regexp.MustCompile(`(?m)^\| \d+ \| (.+) \| (.+) \|$`).FindAllStringSubmatch(text, -1) {
		rows = append(rows, [2]string{m[1], m[2]})
	}
	return rows
}

func readTop(t *testing.T, name string) string {
	t.Helper()
	text := testkit.ReadFile(t, filepath.Join(top, name))
	return string(text)
}

// findings returns the names of all findings that the doctor may print, as the sources have them.
func findings(t *testing.T) (names []string) {
	t.Helper()
	for _, store := range []string{"sqlitestore", "redisstore", "pgstore", "mysqlstore"} {
		list := regexp.MustCompile(`// The names of [\w ]+: ([^.]+)\.`).FindStringSubmatch(readTop(t, "stores/"+store+"/check.go"))
		if list == nil {
			t.Fatalf("%s does not list its findings", store)
		}
		names = append(names, regexp.MustCompile(`[a-z-]+`).FindAllString(list[1], -1)...)
	}
	for _, file := range []string{"stores/anystore/finding.go", "cmd/dibs/internal/proxy/check.go", "cmd/dibs/internal/proxy/temporary.go", "cmd/dibs/internal/command/doctor.go"} {
		for _, m := range regexp.MustCompile(`Name: "([a-z-]+)", Severity`).FindAllStringSubmatch(readTop(t, file), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// TestChecklistNamesCommands: each line of the checklist names the command that checks it. A
// command of this program exists, with its flags, and each name after dibs doctor is a finding.
func TestChecklistNamesCommands(t *testing.T) {
	rows, known := checklist(t), findings(t)
	if len(rows) < 16 || len(known) < 30 {
		t.Fatalf("there are %d lines and %d findings", len(rows), len(known))
	}
	program := regexp.MustCompile(`^(dibs|dibs-prove|curl|grep|make|chronyc|pgbouncer|sha256sum|docker|systemd-analyze|kubectl) \S`)
	var named []string
	for _, row := range rows {
		commands := 0
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			switch text := m[1]; {
			case strings.HasPrefix(text, "dibs "):
				commands++
				checkCommand(t, text)
			case program.MatchString(text):
				commands++
			case slices.Contains(known, text):
				named = append(named, text)
			case !strings.HasPrefix(text, "dibs_"):
				t.Errorf("%s: %q is neither a command nor a finding", row[0], text)
			}
		}
		if commands == 0 {
			t.Errorf("no command checks %s", row[0])
		}
	}
	for _, name := range known {
		if !slices.Contains(named, name) {
			t.Errorf("no line of the checklist names the finding %q", name)
		}
	}
}

// checkCommand checks that a command of this program has the flags with which a page names it.
func checkCommand(t *testing.T, text string) {
	t.Helper()
	var args, flags []string
	for _, word := range strings.Fields(text)[1:] {
		switch {
		case strings.HasPrefix(word, "--"):
			flags = append(flags, word)
		case strings.ToUpper(word) != word: // not FILE
			args = append(args, word)
		}
	}
	code, help, _ := call(t, nil, append(args, "--help")...)
	for _, word := range append(flags, "dibs "+strings.Join(args, " ")) {
		if code != 0 || !strings.Contains(help, word+" ") {
			t.Errorf("%s: %s is unknown", text, word)
		}
	}
}

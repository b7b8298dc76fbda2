package command

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestHelp: the help of each command says what it does, with an example, in lines of at most 80
// columns. Its other lines have at most 100, and no flag repeats the forms of the store's URL.
func TestHelp(t *testing.T) {
	var check func(c *cobra.Command)
	seen := 0
	check = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() != "completion" {
				check(sub)
			}
		}
		seen++
		args := append(strings.Fields(c.CommandPath())[1:], "--help")
		code, text, stderr := call(t, nil, args...)
		if code != 0 || stderr != "" || strings.Contains(text, "\t") {
			t.Errorf("%v: %d %q %q", args, code, text, stderr)
		}
		works := c.Runnable() && c.Parent() != nil && !slices.Contains([]string{"help", "store", "version"}, c.Name())
		if works && !(strings.Contains(text, "Usage:\n") && strings.Contains(text, "Examples:\n  dibs ")) {
			t.Errorf("%v: there is no usage, or no example:\n%s", args, text)
		}
		about, _, _ := strings.Cut(text, "\nUsage:")
		for line := range strings.Lines(text) {
			most := helpWidth
			if works && strings.Contains(about, line) {
				most = 80
			}
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > most {
				t.Errorf("%v: a line has %d columns: %s", args, n, line)
			}
		}
		if strings.Contains(text, "redis+cluster://") != (c.Name() == "store") {
			t.Errorf("%v: the forms of URLs are not in dibs help store alone", args)
		}
	}
	check((&program{}).root())
	if seen < 20 {
		t.Errorf("%d commands were checked", seen)
	}
}

// TestHelpGroups: each command stands in a group of dibs --help, once.
func TestHelpGroups(t *testing.T) {
	_, text, _ := call(t, nil, "--help")
	for title, names := range map[string][]string{
		"Serve requests":  {"config", "healthcheck", "proxy", "serve"},
		"Look and repair": {"doctor", "forget", "ls", "migrate", "prune", "release", "resolve", "show"},
		"Prove":           {"demo"},
		"Other commands":  {"help", "help store", "version"},
	} {
		_, section, _ := strings.Cut(text, "\n"+title+":\n")
		section, _, _ = strings.Cut(section, "\n\n")
		var got []string
		for _, m := range regexp.MustCompile(`(?m)^  (\S+(?: store)?) +[A-Z]`).FindAllStringSubmatch(section, -1) {
			got = append(got, strings.TrimSpace(m[1]))
		}
		if !slices.Equal(got, names) {
			t.Errorf("%s has %q; want %q", title, got, names)
		}
	}
}

// TestProxyHelpIsThePage: help has the flags under the titles of docs/reference/proxy.md, and each flag
// is there.
func TestProxyHelpIsThePage(t *testing.T) {
	_, text, _ := call(t, nil, "proxy", "--help")
	page := readTop(t, "docs/reference/proxy.md")
	for _, title := range proxy.Sections {
		_, onPage, ok := strings.Cut(page, "\n## "+title+"\n")
		onPage, _, _ = strings.Cut(onPage, "\n## ")
		_, inHelp, found := strings.Cut(text, "\n"+title+":\n")
		inHelp, _, _ = strings.Cut(inHelp, "\n\n")
		names := func(pattern, text string) (all []string) {
			for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
				if m[1] != "config" { // which is only a flag
					all = append(all, m[1])
				}
			}
			slices.Sort(all)
			return all
		}
		onThePage, inTheHelp := names("(?m)^\\| `([a-z0-9-]+)` \\|", onPage), names(`(?m)^ +--([a-z0-9-]+)`, inHelp)
		missing := func(name string) bool { return !slices.Contains(onThePage, name) }
		if !ok || !found || len(inTheHelp) == 0 || slices.ContainsFunc(inTheHelp, missing) {
			t.Errorf("%s: help has %q, and the page %q", title, inTheHelp, onThePage)
		}
	}
}

// TestCompletion: a shell completes values of flags, and keys from the store in the states that the
// command is for. Without a store it completes nothing, and says nothing.
func TestCompletion(t *testing.T) {
	url, _ := leave(t)
	for _, test := range []struct {
		args  []string
		store string
		want  []string
	}{
		{[]string{"proxy", "--on-crash", ""}, "", []string{"takeover", "at-most-once"}},
		{[]string{"proxy", "--for", ""}, "", append(idempotency.WebhookSenders(), "mcp")},
		{[]string{"run", "--once-per-from", ""}, "", []string{"start", "end"}},
		{[]string{"ls", "--state", ""}, "", append(texts(conditions), "all")},
		{[]string{"show", ""}, url, []string{"abandoned", scope + "unknown", scope + "done", "urn:dibs:claim:not-an-id", "-v"}},
		{[]string{"show", "ab"}, url, []string{"abandoned"}},
		{[]string{"show", "abandoned", ""}, url, nil},
		{[]string{"resolve", ""}, url, []string{scope + "unknown"}},
		{[]string{"release", ""}, url, nil},
		{[]string{"forget", "abandoned", "ht"}, url, []string{scope + "unknown", scope + "done"}},
		{[]string{"show", ""}, "", nil},
		{[]string{"show", ""}, "sqlite:" + t.TempDir() + "/missing.db", nil},
	} {
		args := slices.Insert(slices.Clone(test.args), 0, "__complete")
		if test.store != "" {
			args = slices.Insert(args, 2, "--store="+test.store)
		}
		code, stdout, _ := call(t, nil, args...)
		text, _, found := strings.Cut(stdout, ":")
		if i := strings.LastIndex(stdout, "\n:"); i >= 0 {
			text = stdout[:i+1]
		}
		got := strings.Fields(text)
		slices.Sort(got)
		slices.Sort(test.want)
		if strings.HasPrefix(stdout, ":") {
			got = nil
		}
		if code != 0 || !found || !slices.Equal(got, test.want) {
			t.Errorf("%q: %d %q; want %q", test.args, code, stdout, test.want)
		}
	}
}

// TestMan: the manual page has every command and flag that dibs help has, and no line of a
// text is a request of roff.
func TestMan(t *testing.T) {
	code, page, stderr := call(t, nil, "man")
	if code != 0 || stderr != "" {
		t.Fatalf("%d %q", code, stderr)
	}
	for line := range strings.Lines(page) {
		if request := regexp.MustCompile(`^[.'](\S*)`).FindStringSubmatch(line); request != nil && !strings.Contains(" TH SH SS PP nf fi ", " "+request[1]+" ") {
			t.Errorf("the page has the request %q", line)
		}
	}
	plain := strings.NewReplacer(`\-`, "-", `\e`, `\`, `\&`, "").Replace(page)
	_, help, _ := call(t, nil, "help")
	_, help, _ = strings.Cut(help, "Serve requests:\n")
	help, _, _ = strings.Cut(help, "\nFlags:")
	commands := regexp.MustCompile(`(?m)^  ([a-z]+)`).FindAllStringSubmatch(help, -1)
	if len(commands) < 10 {
		t.Fatalf("dibs help lists %q", commands)
	}
	for _, c := range commands {
		if c[1] == "help" {
			continue // the page is the help
		}
		_, section, ok := strings.Cut(plain, "\n.SS dibs "+c[1])
		section, _, _ = strings.Cut(section, "\n.SS ")
		_, help, _ := call(t, nil, c[1], "--help")
		for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z0-9-]+)`).FindAllStringSubmatch(help, -1) {
			ok = ok && strings.Contains(section, flag[1]+" ")
		}
		if !ok {
			t.Errorf("the page does not have %s with all its flags:\n%s", c[1], section)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Logf("groff did not check the page: %v", err)
		return
	}
	check := exec.Command(groff, "-man", "-Tutf8", "-Kutf8", "-ww", "-z")
	check.Stdin = strings.NewReader(page)
	if said, err := check.CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("groff: %v\n%s", err, said)
	}
}

// TestRoff: a text is shown as it is, whatever roff thinks of its characters.
func TestRoff(t *testing.T) {
	for text, want := range map[string]string{
		"a-b":          `a\-b`,
		`a\b`:          `a\eb`,
		".so x\n'y\n.": `\&.so x` + "\n" + `\&'y` + "\n" + `\&.`,
	} {
		if got := roff(text); got != want {
			t.Errorf("roff(%q) = %q, want %q", text, got, want)
		}
	}
}

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

package command

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/idempotency"
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

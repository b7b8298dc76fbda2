package command

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

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

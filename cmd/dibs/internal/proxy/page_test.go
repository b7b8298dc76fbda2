package proxy

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// settings is the page that lists every setting.
const settings = "../../../../docs/reference/proxy.md"

// TestPageListsEverySetting: docs/reference/proxy.md has a row for each setting, with its default, and no other
// rows but those of a route. It names the settings that are flags.
func TestPageListsEverySetting(t *testing.T) {
	page := string(testkit.ReadFile(t, settings))
	listed := map[string]string{} // the text of the default
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\| (?:(.*?) \\| )?.*\\|$").FindAllStringSubmatch(page, -1) {
		if _, twice := listed[m[1]]; twice {
			t.Errorf("%s is listed twice", m[1])
		}
		listed[m[1]] = m[2]
	}
	c, flags := defaults(), []string{}
	for _, s := range settingsOf(&c) {
		text, ok := listed[s.name]
		delete(listed, s.name)
		if !ok {
			t.Errorf("%s is not listed", s.name)
		} else if usual := s.text(); usual != "" && plain(strings.Trim(text, "`")) != plain(usual) {
			t.Errorf("the default of %s is %s; the page says %s", s.name, usual, text)
		}
		if s.tag.Get("flag") != "" {
			flags = append(flags, "`--"+s.name+"`")
		}
	}
	// The command adds config; a route has host and path.
	for _, name := range []string{"config", "host", "path"} {
		if _, ok := listed[name]; !ok {
			t.Errorf("%s is not listed", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("%s is listed, and there is no such setting", name)
	}
	last := len(flags) - 1
	if want := "These are flags, too: " + strings.Join(flags[:last], ", ") + " and " + flags[last] + "."; !strings.Contains(page, want) {
		t.Errorf("the page does not say: %s", want)
	}
}

// TestPageListsWhatNeedsARestart: docs/reference/proxy.md names the settings that a reload does not change.
func TestPageListsWhatNeedsARestart(t *testing.T) {
	page := testkit.ReadFile(t, settings)
	var fixed []string
	for _, s := range settingsOf(new(Config)) {
		if s.tag.Get("fixed") != "" {
			fixed = append(fixed, s.name)
		}
	}
	last := len(fixed) - 1
	if want := "- `" + strings.Join(fixed[:last], "`, `") + "` and `" + fixed[last] + "` need a restart."; !strings.Contains(string(page), want) {
		t.Errorf("the page does not say: %s", want)
	}
}

// plain returns a default in one of the ways in which it can be written.
func plain(s string) string {
	if d, err := time.ParseDuration(s); err == nil {
		return d.String()
	}
	if s == "on" {
		return "true"
	}
	return s
}

// TestPageExample: the configuration file of docs/reference/proxy.md can be read.
func TestPageExample(t *testing.T) {
	page := testkit.ReadFile(t, settings)
	example := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindStringSubmatch(string(page))
	if example == nil {
		t.Fatal("the page has no example")
	}
	c, err := load(t, example[1])
	testkit.Must(t, err)
	if n := strings.Count(example[1], "\n  - "); len(c.Routes) != n || n < 2 {
		t.Errorf("the example has %d routes; %d were read", n, len(c.Routes))
	}
}

package draw_test

import (
	"encoding/xml"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/draw"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

var write = flag.Bool("write", false, "draw the charts again")

// TestCharts: each chart of the benchmarks is what is drawn from its page. "make pictures" draws them
// again. A chart is XML, with a title and a description, and no text leaves it, by the widest of the
// fonts.
func TestCharts(t *testing.T) {
	const page = "../../../docs/reference/benchmarks.md"
	if *write {
		testkit.Must(t, draw.Write(page))
	}
	all, err := draw.Charts(page)
	testkit.Must(t, err)
	if len(all) < 5 {
		t.Errorf("the page has only %d charts", len(all))
	}
	for name, want := range all {
		if string(testkit.ReadFile(t, name)) != want {
			t.Errorf("%s is not what its page says; run make pictures", name)
		}
		type text struct {
			X    float64 `xml:"x,attr"`
			Text string  `xml:",chardata"`
		}
		var doc struct {
			Title string `xml:"title"`
			Desc  string `xml:"desc"`
			Bars  []struct {
				Texts []text `xml:"text"`
			} `xml:"g"`
		}
		testkit.Must(t, xml.Unmarshal([]byte(want), &doc))
		if doc.Title == "" || doc.Desc == "" || len(doc.Bars) == 0 {
			t.Errorf("%s: title %q, description %q, %d bars", name, doc.Title, doc.Desc, len(doc.Bars))
		}
		for _, bar := range doc.Bars {
			for _, text := range bar.Texts {
				if end := text.X + 7.4*float64(len([]rune(text.Text))); end > 800 {
					t.Errorf("%s: %q ends at %.0f", name, text.Text, end)
				}
			}
		}
	}
}

// TestWhatIsDrawn: a bar has the colour and the words of its goal, and a group has the bars of a unit.
func TestWhatIsDrawn(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	testkit.Must(t, os.WriteFile(page, []byte(`
## On `+"`a`"+` & b

![It shows <bars>](one.svg)

| what | goal | median | min … max |
|---|---|---|---|
| `+"`fast`"+` | ≤ 2 ms | **1 ms** | 0.5 … 1 500 |
| slow | ≥ 2 ms | **1 ms** | 1 … 1 |
| half | ≥ 0.25 | **0.5** | 0.5 … 0.5 |
| trips | 2 | **3** | 3 … 3 |
| free | – | **4 ms** | 4 … 4 |
`), 0o644))
	all, err := draw.Charts(page)
	testkit.Must(t, err)
	svg := all[filepath.Join(filepath.Dir(page), "one.svg")]
	for _, want := range []string{
		`<title id="t">On a &amp; b</title>`, `<desc id="d">It shows &lt;bars&gt;</desc>`,
		">in ms<", ">ratio: above 1", ">in counts<", ">fast<", ">1 ms, goal ≤ 2 ms<", ">1 ms, goal ≥ 2 ms: missed<", ">3, goal 2: missed<", ">4 ms<",
		// From 0.5 to 1, on a ratio's scale from the goal to 2.
		`<rect x="192.0" y="6" width="176.0" height="12" rx="2" class="a"/>`, "M192.0 12H192.0M16.0 4v16",
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("the chart has no %s:\n%s", want, svg)
		}
	}
	for class, want := range map[string]int{"a": 3, "b": 3, "d": 2} { // with the one of the legend
		if n := strings.Count(svg, ` class="`+class+`"/>`); n != want {
			t.Errorf("%d bars of the colour %s, want %d", n, class, want)
		}
	}
}

// TestWhatCannotBeDrawn: a chart without a table of figures is an error that names the page and the
// chart.
func TestWhatCannotBeDrawn(t *testing.T) {
	for text, want := range map[string]string{
		"no table": "0 of the table's",
		"\n## Another section\n\n| what | goal |\n|---|---|\n| a | – | **1** | 1 … 1 |\n":   "0 of the table's",
		"| what | goal | median |\n|---|---|---|\n| a | – | **fast** | 1 … 2 |":             `"fast" is not a figure`,
		"| what | goal | median |\n|---|---|---|\n| a | – | **1** | 1 … 2 |\n| b | – | 1 |": "1 of the table's 2 rows",
	} {
		page := filepath.Join(t.TempDir(), "page.md")
		testkit.Must(t, os.WriteFile(page, []byte("\n## Title\n\n![It shows](one.svg)\n\n"+text), 0o644))
		if _, err := draw.Charts(page); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "page.md: one.svg") {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

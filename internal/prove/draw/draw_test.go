package draw_test

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/draw"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

const root = "../../.."

// TestPictures: each picture of a page is what is drawn from that page, and there are no others.
// "make pictures" draws them again.
func TestPictures(t *testing.T) {
	all, err := draw.All(root)
	testkit.Must(t, err)
	if len(all) < 8 {
		t.Errorf("the pages have only %d pictures", len(all))
	}
	for name, want := range all {
		if string(testkit.ReadFile(t, filepath.Join(root, name))) != want {
			t.Errorf("%s is not what its page says; run make pictures", name)
		}
		fits(t, name, want)
	}
	files, err := filepath.Glob(root + "/docs/pictures/*.svg")
	testkit.Must(t, err)
	if len(files) != len(all) {
		t.Errorf("docs/pictures has %d SVGs; the pages show %d", len(files), len(all))
	}
}

// fits checks that a picture is XML with a title and a description, that it is small, and that no
// text leaves it, by the widest of the fonts.
func fits(t *testing.T, name, svg string) {
	t.Helper()
	var doc struct {
		Width int    `xml:"width,attr"`
		Title string `xml:"title"`
		Desc  string `xml:"desc"`
		Texts []struct {
			X     float64 `xml:"x,attr"`
			Class string  `xml:"class,attr"`
			Text  string  `xml:",chardata"`
		} `xml:"text"`
	}
	testkit.Must(t, xml.Unmarshal([]byte(svg), &doc))
	if doc.Title == "" || doc.Desc == "" || len(svg) > 60<<10 || len(doc.Texts) == 0 {
		t.Errorf("%s: title %q, description %q, %d bytes, %d texts", name, doc.Title, doc.Desc, len(svg), len(doc.Texts))
	}
	for _, text := range doc.Texts {
		width := 7.4 * float64(len([]rune(text.Text)))
		if strings.HasPrefix(text.Class, "t ") {
			width = 9.1 * float64(len([]rune(text.Text)))
		}
		left := text.X
		switch {
		case strings.HasSuffix(text.Class, "e"):
			left -= width
		case strings.HasSuffix(text.Class, "i"):
			left -= width / 2
		}
		if left < 0 || left+width > float64(doc.Width) {
			t.Errorf("%s: %q is from %.0f to %.0f", name, text.Text, left, left+width)
		}
	}
}

// page makes a tree whose only page has that text, and draws its pictures.
func page(t *testing.T, text string, files ...string) (map[string]string, error) {
	t.Helper()
	dir := t.TempDir()
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "docs/pictures"), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte(text), 0o644))
	for i := 0; i < len(files); i += 2 {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "docs/pictures", files[i]), []byte(files[i+1]), 0o644))
	}
	return draw.All(dir)
}

// TestWhatCannotBeDrawn: a picture without a table, and a table that is neither of figures nor of
// messages, are errors that name the page and the picture.
func TestWhatCannotBeDrawn(t *testing.T) {
	const image = "\n# Title\n\n![It shows](docs/pictures/one.svg)\n\n"
	for text, want := range map[string]string{
		"no table": "no table follows",
		"# Another section\n\n| what | goal |\n|---|---|\n| a | 1 |\n":                  "no table follows",
		"| what | goal | median | min … max |\n|---|---|---|---|\n| a | – | fast | 1 |": `"fast" is no figure`,
		"| what | goal |\n|---|---|\n| a | 1 |\n":                                       "too short",
		"| from | to |\n|---|---|\n| a | b |\n":                                         "no columns",
		"| from | to | what | the key |\n|---|---|---|---|\n| a | b |\n":                "five cells",
	} {
		if _, err := page(t, image+text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "README.md: docs/pictures/one") {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

// TestRecord: what a command prints becomes a recording, and its lines are those of the picture. A
// pause is cut to a second.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cast strings.Builder
		output := io.MultiReader(strings.NewReader("first & last\n\n"), pause{}, strings.NewReader("  second\n"))
		testkit.Must(t, draw.Record(&cast, "a <command>", output))
		if want := `{"version":2,"width":12,"height":4,"idle_time_limit":1,"command":"a \u003ccommand\u003e"}
[0,"o","first \u0026 last\r\n"]
[0,"o","\r\n"]
[60,"o","  second\r\n"]
`; cast.String() != want {
			t.Errorf("recorded\n%s\nwant\n%s", cast.String(), want)
		}
		all, err := page(t, "\n# Title\n\n![It shows](docs/pictures/one.svg)\n", "one.cast", cast.String())
		testkit.Must(t, err)
		svg := all["docs/pictures/one.svg"]
		for _, want := range []string{
			`--t:0.0">$ a &lt;command&gt;<`, `--t:1.1">first &amp; last<`, `--t:2.2">  second<`, `<title id="t">a &lt;command&gt;<`,
		} {
			if !strings.Contains(svg, want) {
				t.Errorf("the picture has no %s:\n%s", want, svg)
			}
		}
	})
	if _, err := page(t, "\n# T\n\n![S](docs/pictures/one.svg)\n", "one.cast", "{}\n[1]\n"); err == nil {
		t.Error("a recording without text is no error")
	}
}

// pause is an output in which nothing comes for a minute.
type pause struct{}

func (pause) Read([]byte) (int, error) { time.Sleep(time.Minute); return 0, io.EOF }

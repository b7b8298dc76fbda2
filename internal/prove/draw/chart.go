// Package draw draws the charts of the benchmarks. A chart has no figures of its own: they are those
// of the table that follows it on its page. So a page and its charts cannot differ, and a reader who
// cannot see a chart reads the table.
package draw

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

//go:embed chart.svg
var svg string

var (
	chart = template.Must(template.New("chart").Parse(svg))

	// image matches the line of a page where a chart is: what it shows, and its file.
	image = regexp.MustCompile(`(?m)^!\[(.+)\]\((\S+\.svg)\)$`)

	// row matches what a row of figures has: what, goal, median, smallest and largest.
	row = regexp.MustCompile(`(?m)^\| (.+?) \| (.+?) \| \*\*(.+?)\*\* \| (.+?) … (.+?) \|`)

	// number matches a figure and its unit. A long number has spaces.
	number = regexp.MustCompile(`^[≤≥ ]*([\d ]*\d(?:\.\d+)?)(?: (\D.*))?$`)
)

// Write draws the charts of a page into their files.
func Write(page string) error {
	all, err := Charts(page)
	for name, text := range all {
		err = errors.Join(err, os.WriteFile(name, []byte(text), 0o644))
	}
	return err
}

// Charts returns the charts of a page, by the paths of their files.
func Charts(page string) (map[string]string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		m := image.FindStringSubmatch(section)
		if m == nil {
			continue
		}
		title, _, _ := strings.Cut(section, "\n")
		drawn, err := draw(strings.ReplaceAll(title, "`", ""), m[1], section)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", page, m[2], err)
		}
		all[filepath.Join(filepath.Dir(page), m[2])] = drawn
	}
	return all, nil
}

// draw draws a bar for each row of a section, in a group for each unit.
func draw(title, shows, section string) (string, error) {
	rows := row.FindAllStringSubmatch(section, -1)
	if lines := strings.Count(section, "\n| ") - 1; lines < 1 || lines != len(rows) {
		return "", fmt.Errorf("%d of the table's %d rows have figures", len(rows), lines)
	}
	var groups []*group
	for _, m := range rows {
		b, err := newBar(m[1:])
		if err != nil {
			return "", err
		}
		i := slices.IndexFunc(groups, func(g *group) bool { return g.unit == b.unit })
		if i < 0 {
			i, groups = len(groups), append(groups, &group{unit: b.unit})
		}
		groups[i].Bars = append(groups[i].Bars, b)
	}
	y := 28.0
	for _, g := range groups {
		y = g.layOut(y + 32)
	}
	var out strings.Builder
	err := chart.Execute(&out, map[string]any{"Title": title, "Shows": shows, "Height": y, "Groups": groups})
	return out.String(), err
}

// A bar is a row, and where it is drawn. Goal is empty if there is none.
type bar struct {
	What, Label, Class              string
	Y                               float64
	From, Width, Least, Most, Goal  px
	unit                            string
	median, smallest, largest, goal float64 // goal is 0 if there is none
}

// px is a length as the SVG has it.
type px string

func newBar(cells []string) (*bar, error) {
	b := &bar{What: strings.ReplaceAll(cells[0], "`", ""), Label: cells[2], Class: "d"}
	var errs [4]error
	b.median, b.unit, errs[0] = parse(cells[2])
	b.smallest, _, errs[1] = parse(cells[3])
	b.largest, _, errs[2] = parse(cells[4])
	if goal := cells[1]; goal != "–" {
		b.goal, _, errs[3] = parse(goal)
		b.Class, b.Label = "a", b.Label+", goal "+goal
		if strings.HasPrefix(goal, "≥") && b.median < b.goal || !strings.HasPrefix(goal, "≥") && b.median > b.goal {
			b.Class, b.Label = "b", b.Label+": missed"
		}
		if b.unit == "" && goal == strconv.FormatFloat(b.goal, 'g', -1, 64) {
			b.unit = "counts" // the goal is a number of things
		}
	}
	return b, cmp.Or(errs[:]...)
}

func parse(text string) (v float64, unit string, err error) {
	m := number.FindStringSubmatch(text)
	if m == nil {
		return 0, "", fmt.Errorf("%q is not a figure", text)
	}
	v, err = strconv.ParseFloat(strings.ReplaceAll(m[1], " ", ""), 64)
	return v, m[2], err
}

// A group has the bars of one unit, on one scale.
type group struct {
	unit, Title   string
	Y, Begin, End float64
	Zero          px
	Ticks         []tick
	Bars          []*bar
}

type tick struct {
	X    px
	Text string
}

// The plot's edges. To the right of it are the figures.
const left, right = 16.0, 544.0

// layOut places the group at a height, and returns where it ends. A ratio's bar begins at 1, on a
// logarithmic scale; every other bar begins at 0.
func (g *group) layOut(y float64) float64 {
	ratio, least, most, zero, head := g.unit == "", 0.0, 0.0, 0.0, 0.0
	if g.Title = "in " + g.unit; ratio {
		g.Title, least, most, zero, head = "ratio: above 1 is more than the other side", 0.5, 2, 1, 24
	}
	for _, b := range g.Bars {
		most = max(most, b.largest, b.goal)
		if ratio {
			least = min(least, b.smallest, cmp.Or(b.goal, 1))
		}
	}
	scale := func(v float64) float64 {
		if ratio {
			return left + math.Log(v/least)/math.Log(most/least)*(right-left)
		}
		return left + (v-least)/(most-least)*(right-left)
	}
	at := func(v float64) px { return px(strconv.FormatFloat(v, 'f', 1, 64)) }
	g.Y, g.Begin, g.End, g.Zero = y, head+24, head+8+40*float64(len(g.Bars)), at(scale(zero))
	if ratio {
		for _, v := range []float64{0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100} {
			if x := scale(v); x >= left && x <= right {
				g.Ticks = append(g.Ticks, tick{at(x), strconv.FormatFloat(v, 'g', -1, 64)})
			}
		}
	}
	for i, b := range g.Bars {
		from, to := min(scale(zero), scale(b.median)), max(scale(zero), scale(b.median))
		b.Y = y + head + 20 + 40*float64(i)
		b.From, b.Width, b.Least, b.Most = at(from), at(max(to-from, 1)), at(scale(b.smallest)), at(scale(b.largest))
		if b.goal != 0 {
			b.Goal = at(scale(b.goal))
		}
	}
	return y + g.End + 16
}

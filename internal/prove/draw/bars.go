package draw

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// A figure is a row of a table of figures: what | goal | median | min … max.
type figure struct {
	what, goal, median, unit string
	at, least, most, aim     float64 // the median, the range and the goal; 0: no goal
}

// number matches a figure and its unit. A long number has spaces.
var number = regexp.MustCompile(`^[≤≥ ]*([\d ]*\d(?:\.\d+)?)(?: (\D.*))?$`)

func parse(text string) (v float64, unit string, err error) {
	m := number.FindStringSubmatch(text)
	if m == nil {
		return 0, "", fmt.Errorf("%q is no figure", text)
	}
	v, err = strconv.ParseFloat(strings.ReplaceAll(m[1], " ", ""), 64)
	return v, m[2], err
}

func newFigure(row []string) (f figure, err error) {
	if len(row) < 4 {
		return f, fmt.Errorf("the row %q is too short", row)
	}
	f = figure{what: row[0], goal: row[1], median: row[2]}
	least, most, _ := strings.Cut(row[3], " … ")
	var errs [4]error
	f.at, f.unit, errs[0] = parse(f.median)
	f.least, _, errs[1] = parse(least)
	f.most, _, errs[2] = parse(most)
	if f.goal != "–" {
		f.aim, _, errs[3] = parse(f.goal)
	}
	if f.unit == "" && f.goal == strconv.FormatFloat(f.aim, 'g', -1, 64) {
		f.unit = "counts" // the goal is a number of things
	}
	return f, cmp.Or(errs[:]...)
}

// class is the colour of the bar: whether the goal was met.
func (f *figure) class() string {
	switch {
	case f.aim == 0:
		return "d"
	case strings.HasPrefix(f.goal, "≥") && f.at < f.aim, !strings.HasPrefix(f.goal, "≥") && f.at > f.aim:
		return "b"
	}
	return "a"
}

// bars draws a bar for each row, in a group for each unit. A ratio's bar begins at 1, on a
// logarithmic scale; every other bar begins at 0.
func (p *picture) bars(rows [][]string) (string, error) {
	var units []string
	groups := map[string][]figure{}
	for _, row := range rows {
		f, err := newFigure(row)
		if err != nil {
			return "", err
		}
		if groups[f.unit] == nil {
			units = append(units, f.unit)
		}
		groups[f.unit] = append(groups[f.unit], f)
	}
	y := 28.0
	p.box(16, y-9, 12, 10, "a")
	p.text(34, y, "m", "goal met")
	p.box(110, y-9, 12, 10, "b")
	p.text(128, y, "m", "goal missed")
	p.box(220, y-9, 12, 10, "d")
	p.text(238, y, "m", "no goal")
	p.line(320, y-11, 320, y+3, "k")
	p.text(327, y, "m", "the goal")
	p.line(400, y-4, 430, y-4, "k")
	p.text(437, y, "m", "from the smallest to the largest round")
	for _, unit := range units {
		y = p.group(y+32, unit, groups[unit])
	}
	return p.svg(y), nil
}

// The plot's edges. To the right of it are the figures.
const left, right = 16.0, 544.0

// group draws the bars of one unit from y on, and returns where they end.
func (p *picture) group(y float64, unit string, figures []figure) float64 {
	least, most := 0.5, 2.0
	if unit != "" {
		least, most = 0, 0
	}
	for _, f := range figures {
		most = max(most, f.most, f.aim)
		if unit == "" {
			least = min(least, f.least)
		}
	}
	scale := func(v float64) float64 {
		part := (v - least) / (most - least)
		if unit == "" {
			part = math.Log(v/least) / math.Log(most/least)
		}
		return left + part*(right-left)
	}
	zero, title := scale(0), "in "+unit
	if unit == "" {
		zero, title = scale(1), "ratio: above 1 is more than the other side"
	}
	p.text(left, y, "s", title)
	end := y + 32 + 40*float64(len(figures))
	if unit == "" {
		for _, tick := range []float64{0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100} {
			if x := scale(tick); x >= left && x <= right {
				p.line(x, y+24, x, end, "l")
				p.text(x, y+20, "m i", strconv.FormatFloat(tick, 'g', -1, 64))
			}
		}
		y += 24
	} else {
		end -= 24
	}
	p.line(zero, y+24, zero, end, "k")
	for _, f := range figures {
		p.text(left, y+20, "", f.what)
		from, to := min(zero, scale(f.at)), max(zero, scale(f.at))
		p.box(from, y+26, max(to-from, 1), 12, f.class())
		p.line(scale(f.least), y+32, scale(f.most), y+32, "k")
		label := f.median
		if f.aim != 0 {
			p.line(scale(f.aim), y+24, scale(f.aim), y+40, "k")
			label += ", goal " + f.goal
			if f.class() == "b" {
				label += ": missed"
			}
		}
		p.text(right+14, y+37, "", label)
		y += 40
	}
	return end + 16
}

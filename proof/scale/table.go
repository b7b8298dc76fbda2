package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Table is some rows of text below a head.
type Table struct {
	Name  string // of its place in docs/scale.md
	Title string
	Rows  [][]string // the first one is the head
}

// Markdown writes the table as Markdown.
func (t Table) Markdown(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", t.Title)
	for i, row := range t.Rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(w, "|---%s|\n", strings.Repeat("|---:", len(row)-1))
		}
	}
	fmt.Fprintln(w)
}

// Text writes the table in columns.
func (t Table) Text(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", strings.ReplaceAll(t.Title, "**", ""))
	width := make([]int, len(t.Rows[0]))
	for _, row := range t.Rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.Rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				fmt.Fprint(w, "  ", cell, pad)
			} else {
				fmt.Fprint(w, "  ", pad, cell)
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

// servers are the stores for which there is something to count.
func servers() []Store { return Stores()[1:] }

// Each is the table of what single things cost.
func Each() Table {
	s := Ordinary(1).Shape
	t := Table{
		Name:  "each",
		Title: fmt.Sprintf("**What one costs**: calls, bytes to the server and from it, bytes of its log. Keys of %d bytes, answers of %d.", s.Key, s.Data),
		Rows:  [][]string{head("", servers())},
	}
	for _, line := range []struct {
		name string
		cost func(Store) Cost
	}{
		{"claim and release", func(b Store) Cost { return b.Claim(s, 1).Plus(b.Release(s, 1)) }},
		{"the same, of each in a batch of 64", func(b Store) Cost { return b.Claim(s, 64).Plus(b.Release(s, 64)).Times(1.0 / 64) }},
		{"renewal", func(b Store) Cost { return b.Renew(s, 1) }},
		{"first request: claim and record", func(b Store) Cost { return b.Claim(s, 1).Plus(b.Keep(s, 1)) }},
		{"the same request again", func(b Store) Cost { return b.Replay(s, 1) }},
		{"job with a mutex", func(b Store) Cost { return b.Job(s) }},
		{"joining a queue of 10", func(b Store) Cost { return b.Join(s, 10) }},
		{"keeping the place, each 0.5 to 2 s", func(b Store) Cost { return b.Ask(s, 10) }},
		{"hand-over", func(b Store) Cost { return b.HandOver(s, 10) }},
	} {
		row := []string{line.name}
		for _, b := range servers() {
			row = append(row, line.cost(b).String())
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// String writes the cost as in the tables: calls, and then bytes.
func (c Cost) String() string {
	var parts []string
	if c.Calls > 0 {
		parts = append(parts, amount(c.Calls)+" ×")
	}
	if c.In > 0 {
		parts = append(parts, size(c.In)+" in", size(c.Out)+" out")
	}
	if c.Log > 0 {
		parts = append(parts, size(c.Log)+" log")
	}
	if c.Notices > 0 {
		parts = append(parts, amount(c.Notices)+" told")
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, ", ")
}

// Kept is the table of what is kept.
func Kept() Table {
	s := Ordinary(1).Shape
	t := Table{Name: "kept", Title: "**What is kept**, in bytes with all that belongs to it.", Rows: [][]string{head("", Stores())}}
	for _, line := range []struct {
		name string
		size func(Store) float64
	}{
		{"lease", func(b Store) float64 { return b.Lease(s) }},
		{"place in a queue", func(b Store) float64 { return b.Place(s) }},
		{fmt.Sprintf("record of %d bytes", s.Data), func(b Store) float64 { return b.Record(s) }},
		{"a million of these", func(b Store) float64 { return b.Record(s) * 1e6 }},
	} {
		row := []string{line.name}
		for _, b := range Stores() {
			row = append(row, size(line.size(b)))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// Processes is the table of what a fleet costs.
func Processes(f Fleet) Table {
	those := servers()
	if f.Processes > 1000 {
		those = those[1:] // so many are not on one host
	}
	t := Table{Name: strconv.Itoa(f.Processes), Title: "**" + plural(f.Processes) + "**, each second.", Rows: [][]string{head("", those)}}
	add := func(name string, figure func(Store) string) {
		row := []string{name}
		for _, b := range those {
			row = append(row, figure(b))
		}
		t.Rows = append(t.Rows, row)
	}
	calls := func(c Cost) string {
		if c.Calls < 0.05 {
			return "–"
		}
		return amount(c.Calls)
	}
	traffic := func(c Cost) string {
		if c.In+c.Out+c.Log == 0 {
			return "–"
		}
		return size(c.In+c.Out) + ", " + size(c.Log)
	}
	add("connections", func(b Store) string {
		least, most := b.Connections()
		return amount(f.all(float64(least))) + " to " + amount(f.all(float64(most)))
	})
	add("calls, doing nothing", func(b Store) string { return calls(f.Idle(b)) })
	add(fmt.Sprintf("calls, to renew what is held: %s", amount(f.all(float64(f.Held)))), func(b Store) string { return calls(f.Renewals(b)) })
	add(fmt.Sprintf("calls, for requests: %s", amount(f.all(f.Requests))), func(b Store) string { return calls(f.Work(b)) })
	add("their traffic, and log", func(b Store) string { return traffic(f.Work(b)) })
	add(fmt.Sprintf("kept of them: %s records", amount(f.Records())), func(b Store) string { return size(f.Records() * b.Record(f.Shape)) })
	add("looked through for what has ended, and sent", func(b Store) string {
		c, _ := f.Sweep(b)
		if c.Read == 0 {
			return "–"
		}
		return size(c.Read) + ", " + size(c.Out)
	})
	add("to look through all takes", func(b Store) string {
		_, takes := f.Sweep(b)
		if takes == 0 {
			return "–"
		}
		return takes.Round(time.Second).String()
	})
	if f.Queue() > 0 {
		add(fmt.Sprintf("calls, while others wait for one key: %s", amount(float64(f.Queue()))), func(b Store) string { return calls(f.Waits(b)) })
		add("their traffic, and log", func(b Store) string { return traffic(f.Waits(b)) })
		add(fmt.Sprintf("calls, as that goes on to the next each %v", f.Section+f.Trip), func(b Store) string { return calls(f.Moves(b)) })
		add("processes of the server that this wakes", func(b Store) string {
			if _, ok := b.(Postgres); !ok {
				return "–"
			}
			return amount(perSecond(f.Section+f.Trip) * Wakes(f.Processes))
		})
	}
	return t
}

// Polling is the table of what it costs where nobody can be told.
func Polling() Table {
	pooled, mysql := PolledPostgres{}, MySQL{}
	t := Table{
		Name:  "polling",
		Title: "**Where nobody can be told**: calls each second while somebody waits in every process.",
		Rows:  [][]string{{"", "PostgreSQL, pooled", "MariaDB"}},
	}
	for _, line := range []struct {
		name      string
		processes int
		waiting   int
		own       bool // the key is not wanted elsewhere
	}{
		{"1 process, 1 waiter", 1, 1, true},
		{"1 process, 64 waiters of one key", 1, 64, true},
		{"100 processes, a waiter each, of keys of their own", 100, 1, true},
		{"100 processes, a waiter each, of one key", 100, 1, false},
	} {
		row := []string{line.name}
		for _, b := range []Store{pooled, mysql} {
			s, all := Ordinary(1).Shape, Cost{}
			for p := range line.processes {
				ahead, queue := p*line.waiting, line.processes*line.waiting
				if line.own {
					ahead, queue = 0, line.waiting
				}
				all = all.Plus(b.Polls(s, line.waiting, ahead), b.Ask(s, queue).Times(Asks(queue)*float64(line.waiting)/float64(queue)))
			}
			row = append(row, amount(all.Calls))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// Room is the table of how far a server goes as it comes.
func Room() Table {
	t := Table{Name: "room", Title: "**How far a server goes as it comes.**", Rows: [][]string{head("", servers()[1:])}}
	row := func(name string, figure func(Store) string) {
		cells := []string{name}
		for _, b := range servers()[1:] {
			cells = append(cells, figure(b))
		}
		t.Rows = append(t.Rows, cells)
	}
	row("connections that it takes", func(b Store) string { return amount(float64(b.Limit())) })
	row("processes that have room, busy to idle", func(b Store) string {
		least, most := Fit(b)
		return amount(float64(least)) + " to " + amount(float64(most))
	})
	row("processes that can wait for one key, when a commit takes 1 ms", func(b Store) string {
		if b.Ask(Shape{}, 0).Log == 0 {
			return "–"
		}
		return amount(float64(Crowd(time.Millisecond)))
	})
	return t
}

// All are all tables, in their order.
func All() []Table {
	return []Table{Each(), Kept(), Processes(Ordinary(1)), Processes(Ordinary(100)), Processes(Ordinary(10_000)), Room(), Polling()}
}

func head(first string, stores []Store) []string {
	row := []string{first}
	for _, b := range stores {
		row = append(row, b.Name())
	}
	return row
}

func plural(processes int) string {
	if processes == 1 {
		return "1 process"
	}
	return amount(float64(processes)) + " processes"
}

// amount writes a number with three digits that count, or without a fraction.
func amount(n float64) string {
	switch {
	case n < 0.0995:
		return fmt.Sprintf("%.2g", n)
	case n < 9.95:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0")
	}
	digits := fmt.Sprintf("%.0f", n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + " " + digits[i:]
	}
	return digits
}

// size writes a number of bytes.
func size(n float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if n < 1000 {
			if n < 9.95 && unit != "B" {
				return fmt.Sprintf("%.1f %s", n, unit)
			}
			return fmt.Sprintf("%.0f %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.1f TB", n)
}
